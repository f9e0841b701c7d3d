// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// wallClock steps the wall clock that one process reads. Nothing else can do that to the binary under
// test: a time namespace leaves CLOCK_REALTIME alone, a step of the host hits every program on it, and
// a static program has no library to replace. But every program reads its clocks through the vDSO, of
// which a debugger may write to the process's own copy. The first step replaces the vDSO's functions
// by system calls that add an offset; further ones change the offset.
type wallClock struct {
	mem    *os.File // of the process that lived when it was opened, whatever becomes of its PID
	offset int64    // address of the seconds that the clock is ahead
}

// vdsoMark precedes the code that openClock adds, so that a second fault finds it.
const vdsoMark = 0x6b636f6c63736f61

// vdsoCode are the replacements. Each ends with ret; at is where the distance to the offset belongs.
var vdsoCode = []struct {
	names []string
	code  []byte
	at    int
}{
	{[]string{"__vdso_clock_gettime", "clock_gettime"}, []byte{
		0xb8, 228, 0, 0, 0, // mov eax, clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi: CLOCK_REALTIME
		0x74, 0x05, // je +5
		0x83, 0xff, 0x05, // cmp edi, CLOCK_REALTIME_COARSE
		0x75, 0x0a, // jne +10
		0x48, 0x8b, 0x0d, 0, 0, 0, 0, // mov rcx, [offset]
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0xc3,
	}, 19},
	{[]string{"__vdso_gettimeofday", "gettimeofday"}, []byte{
		0xb8, 96, 0, 0, 0, // mov eax, gettimeofday
		0x0f, 0x05, // syscall
		0x48, 0x85, 0xff, // test rdi, rdi
		0x74, 0x0a, // je +10
		0x48, 0x8b, 0x0d, 0, 0, 0, 0, // mov rcx, [offset]
		0x48, 0x01, 0x0f, // add [rdi], rcx
		0xc3,
	}, 15},
	{[]string{"__vdso_time", "time"}, []byte{
		0xb8, 201, 0, 0, 0, // mov eax, time
		0x0f, 0x05, // syscall
		0x48, 0x03, 0x05, 0, 0, 0, 0, // add rax, [offset]
		0x48, 0x85, 0xff, // test rdi, rdi
		0x74, 0x03, // je +3
		0x48, 0x89, 0x07, // mov [rdi], rax
		0xc3,
	}, 10},
}

var errNoClock = errors.New("the wall clock of a process can't be stepped here")

// vdso is the image that a process executes.
type vdso struct {
	mem   *os.File
	base  int64
	image []byte
}

func openVDSO(pid int) (v vdso, err error) {
	if runtime.GOARCH != "amd64" {
		return v, errNoClock
	}
	folder := "/proc/" + strconv.Itoa(pid)
	if v.mem, err = os.OpenFile(folder+"/mem", os.O_RDWR, 0); err != nil {
		return v, err
	}
	defer func() {
		if err != nil {
			_ = v.mem.Close()
		}
	}()
	maps, err := os.ReadFile(folder + "/maps")
	if err != nil {
		return v, err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if strings.HasSuffix(line, "[vdso]\n") {
			if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
				return v, err
			}
			v.base, v.image = from, make([]byte, to-from)
			_, err := v.mem.ReadAt(v.image, from)
			return v, err
		}
	}
	return v, errNoClock
}

// room returns the place of the added code, behind everything that the vDSO has; known: it is there.
func (v vdso) room() (at int64, known bool) {
	mark := binary.NativeEndian.AppendUint64(nil, vdsoMark)
	if i := bytes.Index(v.image, mark); i >= 0 {
		return int64(i), true
	}
	return int64(len(bytes.TrimRight(v.image, "\x00"))+15) &^ 15, false
}

// patches returns the code at its place, and the jumps to it by the address of each function.
func (v vdso) patches(at int64) (code []byte, jumps map[int64][]byte, err error) {
	f, err := elf.NewFile(bytes.NewReader(v.image))
	if err != nil {
		return nil, nil, err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, nil, err
	}
	entry := map[string]int64{}
	for _, s := range symbols {
		entry[s.Name] = int64(s.Value)
	}
	code, jumps = binary.NativeEndian.AppendUint64(nil, vdsoMark), map[int64][]byte{}
	code = append(code, make([]byte, 8)...) // the offset
	for _, c := range vdsoCode {
		from, ok := entry[c.names[0]]
		if !ok {
			if from, ok = entry[c.names[1]]; !ok {
				return nil, nil, errNoClock
			}
		}
		here := at + int64(len(code))
		jumps[from] = append([]byte{0xe9}, distance(here-(from+5))...)
		body := bytes.Clone(c.code)
		copy(body[c.at:], distance(at+8-(here+int64(c.at)+4)))
		code = append(code, body...)
	}
	if at+int64(len(code)) > int64(len(v.image)) {
		return nil, nil, errNoClock
	}
	return code, jumps, nil
}

func distance(n int64) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(int32(n))) }

// openClock prepares a process. pause stops all its threads until its result is called: none may be
// inside the bytes that change.
func openClock(pid int, pause func() (func(), error)) (*wallClock, error) {
	v, err := openVDSO(pid)
	if err != nil {
		return nil, err
	}
	at, known := v.room()
	if !known {
		if err := v.replace(pid, at, pause); err != nil {
			_ = v.mem.Close()
			return nil, err
		}
	}
	return &wallClock{v.mem, v.base + at + 8}, nil
}

func (v vdso) replace(pid int, at int64, pause func() (func(), error)) error {
	code, jumps, err := v.patches(at)
	if err != nil {
		return err
	}
	end, err := pause()
	if err != nil {
		return err
	}
	defer end()
	if !allStopped(pid, func(pc int64) bool {
		for from := range jumps {
			if pc > v.base+from && pc < v.base+from+5 {
				return false
			}
		}
		return true
	}) {
		return errors.New("a thread reads the clock")
	}
	if _, err := v.mem.WriteAt(code, v.base+at); err != nil {
		return err
	}
	for from, jump := range jumps {
		if _, err := v.mem.WriteAt(jump, v.base+from); err != nil {
			return err
		}
	}
	return nil
}

// allStopped waits until every thread of a process is stopped, by the signal or by a debugger, and checks
// where each one is.
func allStopped(pid int, allowed func(pc int64) bool) bool {
	folder := "/proc/" + strconv.Itoa(pid) + "/task"
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
		threads, err := os.ReadDir(folder)
		if err != nil {
			return false
		}
		still := true
		for _, t := range threads {
			stat, err := os.ReadFile(folder + "/" + t.Name() + "/stat")
			_, rest, _ := strings.Cut(string(stat), ") ")
			if err == nil && !strings.ContainsAny(rest[:min(1, len(rest))], "TtZ") {
				still = false
			}
		}
		if !still {
			continue
		}
		for _, t := range threads {
			text, _ := os.ReadFile(folder + "/" + t.Name() + "/syscall") // "... SP PC"
			f := strings.Fields(string(text))
			if len(f) == 0 {
				continue
			}
			if pc, err := strconv.ParseInt(f[len(f)-1], 0, 64); err == nil && !allowed(pc) {
				return false
			}
		}
		return true
	}
	return false
}

// set makes the process's wall clock differ from the host's.
func (c *wallClock) set(ahead time.Duration) error {
	seconds := binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
	_, err := c.mem.WriteAt(seconds, c.offset)
	return err
}

func (c *wallClock) close() { _ = c.mem.Close() }

// pauseBySignal stops a process for a moment.
func pauseBySignal(signal func(syscall.Signal)) func() (func(), error) {
	return func() (func(), error) {
		signal(syscall.SIGSTOP)
		return func() { signal(syscall.SIGCONT) }, nil
	}
}

// clocks are the wall clocks of a world's daemon, guardians and programs.
func (w *world) clocks() (out []*wallClock) {
	add := func(pid int, pause func() (func(), error)) {
		if c, err := openClock(pid, pause); err == nil {
			out = append(out, c)
		}
	}
	if cmd := w.daemon.process(); cmd != nil {
		add(cmd.Process.Pid, w.daemon.stop)
	}
	for _, pid := range w.guardians() {
		add(pid, pauseBySignal(func(s syscall.Signal) { w.signalAll([]int{pid}, s, guardianWord) }))
	}
	for _, t := range w.tenants {
		if _, excused := t.excused(); !excused { // it may be stopped on purpose
			add(t.pid(), pauseBySignal(t.signal))
		}
	}
	return out
}

// clockStep steps the wall clock of everything in the world, and back after a while.
func clockStep(w *world, f Fault) error {
	if !w.stepping.TryLock() {
		return errors.New("stepped already")
	}
	defer w.stepping.Unlock()
	ahead, err := time.ParseDuration(f.Text)
	if err != nil {
		return err
	}
	all := w.clocks()
	if len(all) == 0 {
		return errNoClock
	}
	for _, c := range all {
		defer c.close()
		_ = c.set(ahead)
	}
	time.Sleep(f.duration())
	for _, c := range all {
		_ = c.set(0) // one that has ended needs nothing
	}
	return nil
}
