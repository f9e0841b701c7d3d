// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Linux follows at most this many interpreters of scripts.
const maxInterpreters = 5

// native is why the shim has no effect in a program.
type native struct {
	reason string // empty: it takes effect
	musl   bool   // the program's loader refuses libraries made for glibc
}

// checkPreload follows path to the program that the kernel loads, through the first lines of scripts, and
// reports whether the shim takes effect there. A file that it cannot read counts as preloadable.
func checkPreload(path string) native {
	for range maxInterpreters {
		if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && os.Geteuid() != 0 {
			return native{reason: path + " is setuid or setgid, so the loader ignores the shim"}
		}
		next, isScript := interpreter(path)
		if !isScript {
			return checkELF(path)
		}
		if next == "" {
			return native{}
		}
		path = next
	}
	return native{}
}

// interpreter reads the first line of a script. For env it returns the program that env starts.
func interpreter(path string) (next string, isScript bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer file.Close()
	line, err := bufio.NewReader(io.LimitReader(file, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", false
	}
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return "", false
	}
	words := strings.Fields(rest)
	if len(words) == 0 {
		return "", true
	}
	if filepath.Base(words[0]) != "env" {
		return words[0], true
	}
	for _, word := range words[1:] {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		if found, err := exec.LookPath(word); err == nil {
			return found, true
		}
		break
	}
	return words[0], true
}

func checkELF(path string) native {
	file, err := elf.Open(path)
	if err != nil {
		return native{}
	}
	defer file.Close()
	if file.Machine != thisMachine() || file.Class != elf.ELFCLASS64 {
		return native{reason: fmt.Sprintf("%s is made for %s and the shim is not", path, abiName(file))}
	}
	for _, p := range file.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err == nil && strings.HasPrefix(filepath.Base(string(text)), "ld-musl") {
			return native{fmt.Sprintf("%s uses musl, and the shim needs glibc", path), true}
		}
		return native{}
	}
	// The dynamic loader itself, as in `/lib64/ld-linux-x86-64.so.2 CMD`, loads the shim into CMD.
	if names, err := file.DynString(elf.DT_SONAME); err == nil && len(names) > 0 {
		return native{}
	}
	return native{reason: path + " is statically linked and can't load the shim"}
}

// thisMachine is the architecture of the shim, which is that of this program.
func thisMachine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

func abiName(f *elf.File) string {
	bits := "64-bit"
	if f.Class == elf.ELFCLASS32 {
		bits = "32-bit"
	}
	return bits + " " + strings.TrimPrefix(f.Machine.String(), "EM_")
}
