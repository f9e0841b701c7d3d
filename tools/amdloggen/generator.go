// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"strconv"
)

// counts are the expected results of a reader.
type counts struct {
	Lines   int `json:"lines"`
	Kernels int `json:"kernels"`
	Text    int `json:"text"`
	Damaged int `json:"damaged"`
	Cut     int `json:"cut"`
	Glued   int `json:"glued"`
	Orphans int `json:"orphans"`
}

// overhead bounds the lines at the start and the end of a log.
const overhead = 200

type stream struct {
	swq, hwq uint64
	priority int
	rptr     uint64
	wptr     uint64
	lag      int
}

type program struct {
	pid     int
	tids    []uint64
	streams []*stream
	grids   [][3]int
	names   []string
}

type generator struct {
	w        *bufio.Writer
	line     []byte
	state    uint64
	now      uint64
	broken   int
	forms    []form
	form     form
	programs []*program
	counts   counts
}

func newGenerator(w *bufio.Writer, seed uint64, broken int, forms []form) *generator {
	g := &generator{w: w, state: seed*0x9E3779B97F4A7C15 + 1, now: 20159560448, broken: broken, forms: forms, form: forms[0]}
	g.programs = []*program{
		{
			pid: 459769, tids: []uint64{0x7f8edc1c4400, 0x7f8ec07fe640}, grids: [][3]int{{1024, 1, 1}, {50176, 1, 1}, {256, 64, 1}, {12544, 4, 1}, {64, 64, 8}},
			names: []string{
				"void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3> >(int, at::native::AddFunctor<float>, std::array<char*, 3>)",
				"miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1.kd", "Cijk_Ailk_Bljk_SB_MT64x64x16_SN_K1.kd", "MIOpenBatchNormFwdInferSpatialEst.kd",
				"void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*, int, int)", "igemm_fwd_gtcx3_nhwc_fp32_bx0_ex1.kd",
			},
		},
		{pid: 459770, tids: []uint64{0x7fd2aa1c4400}, grids: [][3]int{{8388608, 1, 1}, {401408, 64, 1}, {1605632, 1, 1}}, names: []string{
			"Cijk_Ailk_Bljk_SB_MT256x128x32_MI32x32x2_SN_1LDSB0.kd", "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1.kd", "dummy_kernel(int*, int)",
		}},
	}
	return g
}

// random returns a number below n, by xorshift.
func (g *generator) random(n int) int {
	g.state ^= g.state << 13
	g.state ^= g.state >> 7
	g.state ^= g.state << 17
	return int((g.state >> 11) % uint64(n))
}

// log writes exactly the given numbers of lines and kernels.
func (g *generator) log(lines, kernels int) {
	g.start()
	room := lines - g.counts.Lines - overhead/2
	for i := range kernels {
		end := g.counts.Lines + room*(i+1)/kernels - room*i/kernels
		if len(g.forms) > 1 {
			g.form = g.forms[i%len(g.forms)]
		}
		p := g.programs[g.random(5)/3]
		g.kernel(p, p.streams[g.random(len(p.streams))], end)
	}
	for g.counts.Lines < lines-12 {
		g.chatter(g.programs[0], 0)
	}
	g.form = g.forms[0]
	for _, p := range g.programs {
		for _, s := range p.streams {
			if g.counts.Lines < lines {
				g.emit(3, "rocdevice.cpp", 286, p, 0, "Deleting hardware queue "+hex(g.form.logged(s))+" with refCount 0")
			}
		}
	}
	for g.counts.Lines < lines {
		g.chatter(g.programs[0], 0)
	}
}

func (g *generator) start() {
	for range 8 {
		g.text("/opt/amdgpu/share/libdrm/amdgpu.ids: No such file or directory")
	}
	for n, p := range g.programs {
		g.emit(3, "rocdevice.cpp", 480, p, 0, "Initializing runtime stack, Enumerated GPU agents = 1")
		for i := range 4 {
			s := &stream{swq: uint64(0x7f8edc1a8000 - 0x6000*i + n<<32), hwq: uint64(0x7f8acd200000 - 0x600000*i + n<<32), priority: 1, lag: 1 + 12*n}
			if i == 0 {
				s.priority = 2
			}
			p.streams = append(p.streams, s)
			g.emit(3, "rocdevice.cpp", 2967, p, 0, fmt.Sprintf("Number of allocated hardware queues with low priority: 0, with normal priority: %d, with high priority: 0, maximum per priority is: 8", i))
			g.emit(3, "rocdevice.cpp", 3048, p, 0, g.form.created(s))
			g.emit(3, "rocdevice.cpp", 3141, p, 0, "acquireQueue refCount: "+hex(g.form.logged(s))+" (1)")
		}
	}
}

// kernel writes one submission and fills up to the line number end.
func (g *generator) kernel(p *program, s *stream, end int) {
	t := g.random(len(p.tids))
	name := p.names[g.random(len(p.names))]
	g.emit(3, "hip_module.cpp", 827, p, t, "\x1b[32m hipLaunchKernel ( 0x2094d0, {32,1,1}, {32,1,1}, 0x7ffea7e4b0, 0, stream:0x1952020 ) \x1b[0m")
	g.emit(4, "command.cpp", 357, p, t, "Command (KernelExecution) enqueued: 0x2095b30 to queue: 0x1952020")
	g.emit(3, "rocvirtual.cpp", 3351, p, t, "ShaderName : "+name)
	g.emit(3, "rocvirtual.cpp", 3549, p, t, "KernargSegmentByteSize = 272 KernargSegmentAlignment = 128")
	for i := range 2 + g.random(4) {
		g.emit(4, "rocvirtual.cpp", 883, p, t, "Arg"+strconv.Itoa(i)+":   = ptr:0x7f8abae00000 obj:[0x7f8abae00000-0x7f8abae01000]")
	}
	s.wptr++
	if s.wptr > s.rptr+uint64(s.lag) {
		s.rptr = s.wptr - uint64(g.random(s.lag+1))
	}
	grid := p.grids[g.random(len(p.grids))]
	g.dispatch(p, t, g.form.dispatch(s, grid, uint64(len(name))))
	if g.random(3) == 0 {
		g.emit(4, "rocvirtual.cpp", 1267, p, t, g.form.barrier(s))
		s.wptr++
	}
	g.emit(3, "hip_module.cpp", 829, p, t, "hipLaunchKernel: Returned hipSuccess : : duration: "+strconv.Itoa(4+g.random(30))+" us")
	for g.counts.Lines < end {
		if g.broken > 0 && g.random(g.broken) == 0 {
			g.odd(p, t)
			continue
		}
		g.chatter(p, t)
	}
}

// dispatch writes the packet's line, occasionally truncated after its mark or
// without its start. The kernel counts in either case.
func (g *generator) dispatch(p *program, t int, message string) {
	g.counts.Kernels++
	if g.broken == 0 || g.random(200) > 0 {
		g.emit(4, "rocvirtual.cpp", 1083, p, t, message)
		return
	}
	g.prefix(4, "rocvirtual.cpp", 1083, p, t)
	g.line = append(g.line, message...)
	switch g.random(3) {
	case 0: // the process was killed while writing
		g.line = g.line[:len(g.line)-len(message)*2/5]
		g.counts.Cut++
	case 1: // another writer's newline split the prefix
		g.line = g.line[17:]
		g.counts.Damaged++
		g.counts.Orphans++
	case 2: // glued to the application's own output
		g.line = append([]byte("step 12/100 loss 0.731"), g.line...)
		g.counts.Glued++
	}
	g.end()
}

// odd writes a damaged line without a kernel.
func (g *generator) odd(p *program, t int) {
	switch g.random(6) {
	case 0: // cut within the prefix
		g.prefix(3, "hip_stream.cpp", 398, p, t)
		g.line = g.line[:8+g.random(30)]
		g.counts.Damaged++
		g.counts.Cut++
	case 1: // a hole, as after a full disk
		g.prefix(3, "hip_stream.cpp", 398, p, t)
		g.line = append(g.line, "hipStreamSync\x00\x00\x00\x00\x00\x00\x00\x00"...)
		g.counts.Damaged++
	case 2: // two writers
		g.prefix(3, "hip_stream.cpp", 398, p, t)
		g.line = append(g.line, "hipStreamSynchronize: Ret"...)
		g.prefix(4, "command.cpp", 357, p, t)
		g.line = append(g.line, "Command (InternalMarker) enqueued: 0x2096670 to queue: 0x1952020"...)
		g.counts.Glued++
	case 3: // a packet truncated before its header
		g.prefix(4, "rocvirtual.cpp", 1083, p, t)
		g.line = append(g.line, "SWq=0x7f8edc1a8000, HWq=0x7f8acd2"...)
		g.counts.Cut++
	case 4: // a corrupted prefix
		g.line = append(g.line, ":3:hip_stream.cpp           :3#8 : 201\x7f us: hipStream"...)
		g.counts.Damaged++
	case 5:
		g.text("epoch 3: 1024 images, 201.3 images/s")
		return
	}
	g.end()
}

// chatter writes the messages that make up most of a log.
func (g *generator) chatter(p *program, t int) {
	switch g.random(8) {
	case 0:
		g.emit(3, "hip_stream.cpp", 398, p, t, "\x1b[32m hipStreamSynchronize ( stream:0x1952020 ) \x1b[0m")
	case 1:
		g.emit(3, "hip_stream.cpp", 399, p, t, "hipStreamSynchronize: Returned hipSuccess : ")
	case 2:
		g.emit(3, "hip_platform.cpp", 225, p, t, "\x1b[32m __hipPushCallConfiguration ( {32,1,1}, {32,1,1}, 0, stream:0x1952020 ) \x1b[0m")
	case 3:
		g.emit(3, "hip_platform.cpp", 229, p, t, "__hipPushCallConfiguration: Returned hipSuccess : ")
	case 4:
		g.emit(3, "hip_device_runtime.cpp", 637, p, t, "\x1b[32m hipGetDevice ( 0x7ffea7e4c8 ) \x1b[0m")
	case 5:
		g.emit(3, "hip_device_runtime.cpp", 645, p, t, "hipGetDevice: Returned hipSuccess : 0")
	case 6:
		g.emit(3, "hip_error.cpp", 36, p, t, "\x1b[32m hipGetLastError (  ) \x1b[0m")
	case 7:
		g.emit(4, "command.cpp", 175, p, t, "Command 0x2096670 complete (Wall: 20161701, CPU: 0, GPU: 12 us)")
	}
}

func (g *generator) text(s string) {
	g.line = append(g.line, s...)
	g.counts.Text++
	g.end()
}

func (g *generator) emit(level int, file string, number int, p *program, t int, message string) {
	g.prefix(level, file, number, p, t)
	g.line = append(g.line, message...)
	g.end()
}

func (g *generator) prefix(level int, file string, number int, p *program, t int) {
	g.now += uint64(1 + g.random(9))
	g.line = append(g.line, ':', byte('0'+level), ':')
	g.line = append(g.line, file...)
	for i := len(file); i < 25; i++ {
		g.line = append(g.line, ' ')
	}
	g.line = append(g.line, ':')
	start := len(g.line)
	g.line = strconv.AppendInt(g.line, int64(number), 10)
	for len(g.line)-start < 4 {
		g.line = append(g.line, ' ')
	}
	g.line = append(g.line, ": "...)
	g.line = strconv.AppendUint(g.line, g.now, 10)
	g.line = g.form.writer(g.line, p.pid, p.tids[t])
}

// end writes the line out.
func (g *generator) end() {
	g.line = append(g.line, '\n')
	_, _ = g.w.Write(g.line) // Flush returns the error
	g.line = g.line[:0]
	g.counts.Lines++
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }
