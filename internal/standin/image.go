// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

const (
	headerBytes  = 64
	programBytes = 56
	symbolBytes  = 24
	pageBytes    = 0x10000 // the largest page of any machine
)

// builder collects the parts of an image.
type builder struct {
	out     bytes.Buffer
	names   bytes.Buffer
	dynamic []elf.Dyn64
}

// name adds a string and returns its offset in the table of strings.
func (b *builder) name(text string) uint32 {
	at := b.names.Len()
	b.names.WriteString(text + "\x00")
	return uint32(at)
}

func (b *builder) entry(tag elf.DynTag, value uint64) {
	b.dynamic = append(b.dynamic, elf.Dyn64{Tag: int64(tag), Val: value})
}

// put writes values at the next multiple of eight bytes and returns where.
func (b *builder) put(values ...any) uint64 {
	b.out.Write(make([]byte, -b.out.Len()&7))
	at := uint64(b.out.Len())
	for _, v := range values {
		_ = binary.Write(&b.out, binary.LittleEndian, v) // to memory
	}
	return at
}

// hash is the hash of a version's name in the System V ABI.
func hash(name string) uint32 {
	var h uint32
	for _, c := range []byte(name) {
		h = h<<4 + uint32(c)
		high := h & 0xf0000000
		h = (h ^ high>>24) &^ high
	}
	return h
}

// versions writes the definitions of symbol versions; the first is the library's own name.
func (b *builder) versions(names []string) uint64 {
	const definitionBytes, nameBytes = 20, 8
	at := b.put()
	for i, name := range names {
		next, flags := uint32(definitionBytes+nameBytes), uint16(0)
		if i == len(names)-1 {
			next = 0
		}
		if i == 0 {
			flags = uint16(elf.VER_FLG_BASE)
		}
		for _, v := range []any{
			uint16(1), flags, uint16(i + 1), uint16(1), hash(name), uint32(definitionBytes), next, // Elf64_Verdef
			b.name(name), uint32(0), // Elf64_Verdaux
		} {
			_ = binary.Write(&b.out, binary.LittleEndian, v)
		}
	}
	return at
}

// Image returns a library with the name soname that makes the loader load the shim, from the library's own
// folder or where the loader finds it, and then the runtime at path.
func Image(soname, shim, path string) ([]byte, error) {
	versions, err := symbolVersions(path)
	if err != nil {
		return nil, err
	}
	const programs = 3
	var b builder
	b.name("")
	b.out.Write(make([]byte, headerBytes+programs*programBytes))
	b.entry(elf.DT_SONAME, uint64(b.name(soname)))
	b.entry(elf.DT_NEEDED, uint64(b.name(shim)))
	b.entry(elf.DT_NEEDED, uint64(b.name(path)))
	b.entry(elf.DT_RUNPATH, uint64(b.name("$ORIGIN")))
	b.entry(elf.DT_HASH, b.put([]uint32{1, 1, 0, 0})) // one bucket and one chain, both empty
	b.entry(elf.DT_SYMTAB, b.put(make([]byte, symbolBytes)))
	b.entry(elf.DT_SYMENT, symbolBytes)
	b.entry(elf.DT_VERSYM, b.put(uint16(0)))
	if len(versions) > 0 {
		all := append([]string{soname}, versions...)
		b.entry(elf.DT_VERDEF, b.versions(all))
		b.entry(elf.DT_VERDEFNUM, uint64(len(all)))
	}
	b.entry(elf.DT_STRTAB, b.put(b.names.Bytes()))
	b.entry(elf.DT_STRSZ, uint64(b.names.Len()))
	b.entry(elf.DT_NULL, 0)
	dynamic := b.put(b.dynamic)
	end := uint64(b.out.Len())

	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine()), Version: 1, Phoff: headerBytes, Ehsize: headerBytes,
		Phentsize: programBytes, Phnum: programs, Shentsize: 64,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	image := b.out.Bytes()
	copy(image, (&builder{}).bytes(header,
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Filesz: end, Memsz: end, Align: pageBytes},
		elf.Prog64{
			Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamic, Vaddr: dynamic, Paddr: dynamic,
			Filesz: end - dynamic, Memsz: end - dynamic, Align: 8,
		},
		elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	))
	return image, nil
}

func (b *builder) bytes(values ...any) []byte {
	b.put(values...)
	return b.out.Bytes()
}
