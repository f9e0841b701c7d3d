// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The document follows SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/).
type document struct {
	SPDXVersion   string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creationInfo   `json:"creationInfo"`
	Describes     []string       `json:"documentDescribes"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string        `json:"SPDXID"`
	Name          string        `json:"name"`
	Version       string        `json:"versionInfo,omitempty"`
	FileName      string        `json:"packageFileName,omitempty"`
	Purpose       string        `json:"primaryPackagePurpose,omitempty"`
	Download      string        `json:"downloadLocation"`
	FilesAnalyzed bool          `json:"filesAnalyzed"`
	Checksums     []checksum    `json:"checksums,omitempty"`
	Licence       string        `json:"licenseConcluded"`
	Declared      string        `json:"licenseDeclared"`
	Copyright     string        `json:"copyrightText"`
	References    []externalRef `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	ourLicence  = "Apache-2.0"
	noAssertion = "NOASSERTION"
	documentID  = "SPDXRef-DOCUMENT"
	imageID     = "SPDXRef-image"
	libraryID   = "SPDXRef-file-libxsched.so"
)

// notInID are the characters that an SPDX identifier may not have.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// billOf lists what is in an image: its programs, the C library, and the modules that each program was
// linked from, which the programs themselves name.
func billOf(o options, platform v1.Platform, folder string) ([]byte, error) {
	doc := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: documentID, Describes: []string{imageID},
		Name:     fmt.Sprintf("xsched-%s-%s-%s", o.version, platform.OS, platform.Architecture),
		Creation: creationInfo{o.created.Format(time.RFC3339), []string{"Tool: xsched-image-" + o.version, "Organization: XSched authors"}},
	}
	relate := func(from, kind, to string) {
		doc.Relationships = append(doc.Relationships, relationship{from, kind, to})
	}
	relate(documentID, "DESCRIBES", imageID)
	doc.Packages = []spdxPackage{own(o, imageID, "xsched", "CONTAINER")}
	modules := map[string]spdxPackage{}
	for _, e := range contents {
		if e.from == "" || e.from == "LICENSE" {
			continue
		}
		id := "SPDXRef-file-" + e.from
		p := own(o, id, e.from, "APPLICATION")
		if id == libraryID {
			p.Purpose = "LIBRARY"
		}
		p.FileName = "/" + e.path
		var err error
		if p.Checksums, err = sum(filepath.Join(folder, e.from)); err != nil {
			return nil, err
		}
		doc.Packages = append(doc.Packages, p)
		relate(imageID, "CONTAINS", id)
		if id == libraryID {
			continue
		}
		info, err := buildinfo.ReadFile(filepath.Join(folder, e.from))
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", e.from, err)
		}
		for _, m := range modulesOf(info) {
			p := module(m)
			modules[p.ID] = p
			relate(id, "STATIC_LINK", p.ID)
		}
	}
	relate("SPDXRef-file-xsched", "CONTAINS", libraryID) // embedded
	doc.Packages = append(doc.Packages, slices.SortedFunc(maps.Values(modules), func(a, b spdxPackage) int { return cmp.Compare(a.ID, b.ID) })...)
	// The same content has the same namespace, and other content another.
	text, err := indented(doc)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(text)
	doc.Namespace = "https://xsched.dev/spdx/" + doc.Name + "-" + hex.EncodeToString(digest[:16])
	return indented(doc)
}

func own(o options, id, name, purpose string) spdxPackage {
	return spdxPackage{
		ID: id, Name: name, Version: o.version, Purpose: purpose, Download: noAssertion,
		Licence: ourLicence, Declared: ourLicence, Copyright: "XSched authors",
	}
}

func sum(file string) ([]checksum, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a file of the image: %w", err)
	}
	digest := sha256.Sum256(text)
	return []checksum{{"SHA256", hex.EncodeToString(digest[:])}}, nil
}

// modulesOf returns the modules of a program, and the standard library as one of them.
func modulesOf(info *buildinfo.BuildInfo) []debug.Module {
	modules := []debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, *m)
	}
	return modules
}

func module(m debug.Module) spdxPackage {
	return spdxPackage{
		ID: "SPDXRef-go-" + strings.Trim(notInID.ReplaceAllString(m.Path+"-"+m.Version, "-"), "-"), Name: m.Path, Version: m.Version, Purpose: "LIBRARY",
		Download: noAssertion, Licence: noAssertion, Declared: noAssertion, Copyright: noAssertion,
		References: []externalRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)}},
	}
}
