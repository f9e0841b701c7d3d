// SPDX-License-Identifier: Apache-2.0

package embedded

import "embed"

// all: so that the folder may hold nothing but its placeholder.
//
//go:embed all:files/arm64
var files embed.FS

const folder = "files/arm64/"
