# SPDX-License-Identifier: Apache-2.0
"""The models of worker.py. Weights are random, nothing is downloaded, and every output repeats bit by bit."""
import sys
import time

SMALL = {"llama": dict(layers=2, width=64, heads=4, groups=2, inner=96, vocab=128, longest=32), "prompt": 8,
         "bert": (64, 4, 96, 16), "gpt2": (2, 64, 4, 128, 16), "fft": (4, 64), "copies": 1 << 12, "recommender": (4, 50, 8, 16), "deep": 64}
FULL = {"llama": dict(layers=22, width=2048, heads=32, groups=4, inner=5632, vocab=32000, longest=1024), "prompt": 512,
        "bert": (768, 12, 3072, 128), "gpt2": (12, 768, 12, 50257, 1024), "fft": (64, 1 << 20), "copies": 1 << 26, "recommender": (32, 100000, 64, 256), "deep": 1 << 22}
# Sizes of nets.py: those of ViT-B/16, MobileNetV2, DeepLabV3 over an 18-layer network, and Whisper base.
SMALL["nets"] = {"vit": (32, 8, 64, 4, 2, 10), "mobilenet": (32, 8, [(1, 8, 1, 1), (6, 12, 2, 2)], 32, 10),
                 "deeplab": (64, [(8, 1, 1, 1), (16, 1, 2, 1), (16, 1, 1, 2)], 16, (2, 3), 5), "whisper": (8, 30, 64, 4, 2, 50, 3),
                 "unet": (8, 4, 16, (1, 2), 1)}
FULL["nets"] = {"vit": (224, 16, 768, 12, 12, 1000),
                "mobilenet": (224, 32, [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)], 1280, 1000),
                "deeplab": (513, [(64, 2, 1, 1), (128, 2, 2, 1), (256, 2, 2, 1), (512, 2, 1, 2)], 256, (6, 12, 18), 21),
                "whisper": (80, 3000, 512, 8, 6, 51865, 8),
                "unet": (64, 4, 128, (1, 2, 4), 2)}
TOKENS = (2, 6)  # least and greatest number of tokens of a serving request


class Model:
    """A function that returns the same output every time."""
    cycle = 1       # steps until the outputs repeat
    at = 0          # position of the last step in the cycle
    clocked = True  # the worker may record an event behind the step
    waits = False   # step returns when the result is in host memory

    def __init__(self, run=None):
        self.run = run

    def step(self):
        return self.run()

    def request(self):
        """One whole request: its kernels count as the time of a request."""
        return self.step()

    def restart(self):
        """The next step is the first of the cycle."""

    def audit(self):
        """An output whose hash never changes."""
        self.restart()
        return self.step()

    def serve(self, token, submitted=lambda: None):
        """Computes one token; calls submitted before the wait for it."""
        raise ValueError("this model does not serve tokens")

    def pace(self, wanted_ms):
        """Adds host work until a request takes wanted_ms; returns (without, with) in ms. Other models ignore it."""
        took = self.median_ms()
        return took, took

    def median_ms(self, n=9):
        times = []
        for _ in range(n):
            start = time.perf_counter_ns()
            self.request()
            times.append((time.perf_counter_ns() - start) / 1e6)
        return sorted(times)[n // 2]


class Eager(Model):
    """A model that submits kernel by kernel and ends with `.cpu()`. Host work between the kernels stands for that of a
    serving framework, so that a request takes the same CPU time on every machine."""
    clocked, waits = False, True

    def __init__(self, forward):
        self.forward, self.spin_ns, self.count = forward, 0, 0

    def tick(self):
        self.count += 1
        if self.spin_ns:
            until = time.perf_counter_ns() + self.spin_ns
            while time.perf_counter_ns() < until:
                pass

    def step(self):
        return self.forward(self.tick).cpu()

    def pace(self, wanted_ms):
        self.spin_ns = 0
        self.step()
        self.count = 0
        self.step()
        ticks, took = self.count, self.median_ms()
        self.spin_ns = int(max(wanted_ms - took, 0) * 1e6 / ticks)
        return took, self.median_ms()


class Decode(Model):
    """One decode step as a CUDA graph. The logits go to pinned memory, or to pageable memory by `.cpu()`."""
    clocked, waits = False, True

    def __init__(self, maker, pinned):
        self.sequence = maker.sequence()  # the graph holds no reference to it
        self.graph, self.logits = maker.decode_graph(self.sequence)
        self.stream = maker.stream
        self.host = maker.pinned(self.logits) if pinned else None

    def step(self):
        self.graph()
        if self.host is None:
            return self.logits.cpu()
        self.host.copy_(self.logits, non_blocking=True)
        self.stream().synchronize()
        return self.host


class Serve(Model):
    """A prompt, then decode steps as a CUDA graph. Every token's logits go to pinned memory. Only the first token's are
    compared: those of later tokens differ now and then also without XSched and without a neighbour."""
    clocked, waits = False, True

    def __init__(self, maker):
        self.maker, self.sequence = maker, maker.sequence()
        self.graph, self.logits = maker.decode_graph(self.sequence)
        self.first, self.later = maker.pinned(self.logits), maker.pinned(self.logits)
        # The first token comes from the prompt; decode steps continue behind it.
        self.positions = [maker.pinned(self.sequence.position.cpu() + max(i - 1, 0), copy=True) for i in range(TOKENS[1])]

    def step(self):
        return self.serve(0)

    def serve(self, token, submitted=lambda: None):
        host = self.later if token else self.first
        if token == 0:
            out = self.maker.llama.prefill(self.maker.prompt, self.sequence)
        else:
            self.sequence.position.copy_(self.positions[token], non_blocking=True)
            self.graph()
            out = self.logits
        host.copy_(out, non_blocking=True)
        submitted()
        self.maker.stream().synchronize()
        return host

    def request(self):
        for token in range(sum(TOKENS) // 2):
            self.serve(token)


class Training(Model):
    """Training steps of a GPT-2. Every few steps it starts again from the same weights, so that the losses repeat."""
    cycle = 4

    def __init__(self, torch, device, batch, sizes):
        layers, width, heads, vocab, self.length = sizes
        # Without these, the backward pass of attention adds in any order.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.torch, self.heads, self.device, self.at = torch, heads, device, -1
        shapes = [(vocab, width), (self.length, width)] + [s for _ in range(layers) for s in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))]
        self.weights = [(torch.randn(s, device=device) * 0.02).requires_grad_(True) for s in shapes]
        self.first = [w.detach().clone() for w in self.weights]
        self.optimizer = torch.optim.AdamW(self.weights, lr=3e-4, fused=device != "cpu")
        self.tokens = torch.randint(0, vocab, (batch, self.length), device=device)

    def restart(self):
        torch, self.at = self.torch, -1
        with torch.no_grad():
            torch._foreach_copy_([w.detach() for w in self.weights], self.first)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def loss(self):
        f, (words, places, *layers) = self.torch.nn.functional, self.weights
        batch, length, width = *self.tokens.shape, words.shape[1]
        x = f.embedding(self.tokens, words) + places
        for i in range(0, len(layers), 4):
            qkv, out, up, down = layers[i:i + 4]
            h = f.layer_norm(x, (width,))
            q, k, v = f.linear(h, qkv).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + f.linear(a.transpose(1, 2).reshape(batch, length, width), out)
            x = x + f.linear(f.gelu(f.linear(f.layer_norm(x, (width,)), up), approximate="tanh"), down)
        logits = f.linear(f.layer_norm(x, (width,)), words)
        return f.cross_entropy(logits[:, :-1].flatten(0, 1).float(), self.tokens[:, 1:].flatten())

    def step(self):
        if self.at + 1 == self.cycle:
            self.restart()
        self.at += 1
        with self.torch.enable_grad(), self.torch.autocast(self.device, self.torch.bfloat16):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class Copies(Model):
    """Copies from and to pinned memory at the same time. It launches no kernel, so only the end is checked."""

    def __init__(self, maker, size):
        torch, self.maker = maker.torch, maker
        self.up = maker.pinned(torch.randint(0, 255, (size,), dtype=torch.uint8), copy=True)
        self.down = maker.pinned(torch.zeros(size, dtype=torch.uint8), copy=True)
        self.a = torch.zeros(size, dtype=torch.uint8, device=maker.device)
        self.b = self.up.to(maker.device).flip(0)
        self.streams = [torch.cuda.Stream() for _ in range(2)] if maker.device != "cpu" else None

    def step(self):
        torch, pairs = self.maker.torch, ((self.a, self.up), (self.down, self.b))
        for _ in range(4):
            for i, (to, source) in enumerate(pairs):
                if self.streams is None:
                    to.copy_(source)
                    continue
                self.streams[i].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.streams[i]):
                    to.copy_(source, non_blocking=True)
            for s in self.streams or []:
                torch.cuda.current_stream().wait_stream(s)

    def audit(self):
        self.step()
        if self.streams:
            self.maker.torch.cuda.synchronize()
        return self.maker.torch.cat([self.down, self.a.cpu()])


class Sequence:
    """The keys and values of one sequence, and the position of its next token."""

    def __init__(self, llama, position):
        torch, words = llama.torch, llama.words
        shape = (1, llama.groups, len(llama.all), llama.size)
        self.cache = [[torch.zeros(shape, device=words.device, dtype=words.dtype) for _ in range(2)] for _ in llama.layers]
        self.position = torch.full((1,), position, dtype=torch.int64, device=words.device)


class Llama:
    """A decoder with the usual unfused operations: RMS norm, rotary positions, grouped attention, gated MLP."""

    def __init__(self, torch, device, layers, width, heads, groups, inner, vocab, longest):
        self.torch, self.f, self.heads, self.groups, self.size = torch, torch.nn.functional, heads, groups, width // heads

        def weight(*shape):
            return torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
        self.words, self.head = weight(vocab, width), weight(vocab, width)
        self.one = torch.ones(width, device=device, dtype=torch.bfloat16)
        kv = groups * self.size
        self.layers = [[weight(width, width), weight(kv, width), weight(kv, width), weight(width, width),
                        weight(inner, width), weight(inner, width), weight(width, inner)] for _ in range(layers)]
        angle = torch.outer(torch.arange(longest, device=device).float(), 10000.0 ** (-torch.arange(0, self.size, 2, device=device).float() / self.size))
        angle = torch.cat([angle, angle], 1)
        self.cos, self.sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        self.all = torch.arange(longest, device=device)
        self.token = torch.full((1, 1), 7, dtype=torch.int64, device=device)

    def norm(self, x):
        h = x.float()
        h = h * self.torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.one * h.bfloat16()

    def turn(self, x, cos, sin):
        half = self.size // 2
        return x * cos + self.torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, tokens, places, sequence, mask, tick):
        f, batch, length = self.f, *tokens.shape
        x = f.embedding(tokens, self.words)
        cos, sin = self.cos.index_select(0, places), self.sin.index_select(0, places)
        for number, (wq, wk, wv, wo, gate, up, down) in enumerate(self.layers):
            h = self.norm(x)
            tick()
            q, k, v = (f.linear(h, w).view(batch, length, -1, self.size).transpose(1, 2) for w in (wq, wk, wv))
            tick()
            q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
            tick()
            if sequence:
                for kept, new in zip(sequence.cache[number], (k, v)):
                    kept.index_copy_(2, places, new)
                if mask is not None:
                    k, v = sequence.cache[number]
            times = self.heads // self.groups
            k, v = (t[:, :, None].expand(-1, -1, times, -1, -1).reshape(batch, self.heads, -1, self.size) for t in (k, v))
            tick()
            a = f.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            x = x + f.linear(a.transpose(1, 2).reshape(batch, length, -1), wo)
            tick()
            h = self.norm(x)
            tick()
            x = x + f.linear(f.silu(f.linear(h, gate)) * f.linear(h, up), down)
            tick()
        return f.linear(self.norm(x[:, -1:]), self.head)[:, 0]

    def decode(self, sequence, tick=lambda: None):
        """One step at the position of the sequence."""
        mask = (self.all <= sequence.position).view(1, 1, 1, -1)
        return self.forward(self.token, sequence.position, sequence, mask, tick)

    def prefill(self, tokens, sequence=None):
        return self.forward(tokens, self.all[:tokens.shape[1]], sequence, None, lambda: None)


class Maker:
    """Builds models for one process. Models of one process share the weights of the LLM."""

    def __init__(self, torch, device="cuda"):
        self.torch, self.device = torch, device
        self.sizes = SMALL if device == "cpu" else FULL
        self._llama = None

    def build(self, spec):
        name, _, arg = spec.partition(":")
        torch, n = self.torch, int(arg or 1)
        torch.manual_seed(7)
        make = getattr(self, "make_" + name.replace("-", "_"), None)
        if make is None:
            raise ValueError("unknown model " + name)
        start = time.monotonic()
        model = make(n)
        print("%s: built in %.1f s" % (spec, time.monotonic() - start), file=sys.stderr)
        return model if isinstance(model, Model) else Model(model)

    # -- parts

    def stream(self):
        return self.torch.cuda.current_stream() if self.device != "cpu" else Immediate()

    def pinned(self, like, copy=False):
        """Page-locked host memory of the same shape."""
        out = self.torch.empty(like.shape, dtype=like.dtype, pin_memory=self.device != "cpu")
        return out.copy_(like) if copy else out

    @property
    def llama(self):
        if self._llama is None:
            self._llama = Llama(self.torch, self.device, **self.sizes["llama"])
            self.prompt = self.torch.randint(0, self.sizes["llama"]["vocab"], (1, self.sizes["prompt"]), device=self.device)
        return self._llama

    def sequence(self):
        """A sequence behind the prompt."""
        out = Sequence(self.llama, self.sizes["prompt"])
        self.llama.prefill(self.prompt, out)
        return out

    def decode_graph(self, sequence):
        """Returns a function that runs one decode step as a CUDA graph, and its output."""
        torch, llama = self.torch, self.llama
        if self.device == "cpu":
            logits = llama.decode(sequence)
            return lambda: logits.copy_(llama.decode(sequence)), logits
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                llama.decode(sequence)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = llama.decode(sequence)
        return graph.replay, logits

    # -- services

    def make_llm_graph(self, _):
        return Decode(self, pinned=True)

    def make_llm_cpu(self, _):
        return Decode(self, pinned=False)

    def make_llm_eager(self, _):
        sequence = self.sequence()
        return Eager(lambda tick: self.llama.decode(sequence, tick))

    def make_serve(self, _):
        return Serve(self)

    def make_bert(self, layers):
        """An encoder of the size of BERT, 128 tokens."""
        torch, f = self.torch, self.torch.nn.functional
        width, heads, inner, length = self.sizes["bert"]
        x = torch.randn(1, length, width, device=self.device, dtype=torch.bfloat16)

        def linear(n, m):
            return [torch.randn(n, m, device=self.device, dtype=torch.bfloat16) * 0.02, torch.zeros(n, device=self.device, dtype=torch.bfloat16)]
        made = [[linear(*s) for s in [(width, width)] * 4 + [(inner, width), (width, inner)]] for _ in range(layers)]

        def forward(tick):
            y = x
            for q, k, v, out, up, down in made:
                parts = []
                for w in (q, k, v):
                    parts.append(f.linear(y, *w).view(1, length, heads, -1).transpose(1, 2))
                    tick()
                a = f.scaled_dot_product_attention(*parts)
                tick()
                y = f.layer_norm(y + f.linear(a.transpose(1, 2).reshape(1, length, width), *out), (width,))
                tick()
                y = f.layer_norm(y + f.linear(f.gelu(f.linear(y, *up)), *down), (width,))
                tick()
            return torch.tanh(y[:, 0])
        return Eager(forward)

    def make_compiled(self, layers):
        """The same, compiled: fewer kernels, which the compiler's own code launches."""
        eager = self.make_bert(layers)
        forward = self.torch.compile(lambda: eager.forward(lambda: None)) if self.device != "cpu" else lambda: eager.forward(lambda: None)
        for _ in range(3):
            forward()
        return Eager(lambda tick: (forward(), tick())[0])

    def make_unet(self, batch):
        """One step of a diffusion model."""
        step = self._net("unet", batch)
        return Eager(lambda tick: (step(), tick())[0])

    def make_recommender(self, tables):
        """Embeddings of one value per table, their products, and two networks of three layers. The inputs come from the host."""
        torch, f = self.torch, self.torch.nn.functional
        batch, rows, width, inner = self.sizes["recommender"]
        dense, wanted = torch.randn(batch, 13), torch.randint(0, rows, (tables, batch))
        embeddings = [torch.randn(rows, width, device=self.device) for _ in range(tables)]

        def linear(n, m):
            return [torch.randn(n, m, device=self.device) / m ** 0.5, torch.zeros(n, device=self.device)]
        bottom = [linear(*s) for s in ((inner, 13), (inner, inner), (width, inner))]
        top = [linear(*s) for s in ((inner, width + (tables + 1) ** 2), (inner, inner), (1, inner))]

        def forward(tick):
            y, rows_of = dense.to(self.device), wanted.to(self.device)
            for w in bottom:
                y = f.relu(f.linear(y, *w))
                tick()
            parts = [y]
            for table, row in zip(embeddings, rows_of):
                parts.append(f.embedding(row, table))
                tick()
            together = torch.stack(parts, 1)
            z = torch.cat((y, (together @ together.transpose(1, 2)).flatten(1)), 1)
            for w in top:
                z = f.relu(f.linear(z, *w))
                tick()
            return torch.sigmoid(z)
        return Eager(forward)

    # -- services and jobs of the vision suites

    def _resnet(self, name, batch):
        import torchvision
        with self.torch.device(self.device):
            model = getattr(torchvision.models, name)(weights=None).eval()
            x = self.torch.randn(batch, 3, 224, 224)
        return lambda: model(x)

    def make_resnet18(self, batch):
        return self._resnet("resnet18", batch)

    def make_resnet50(self, batch):
        return self._resnet("resnet50", batch)

    def _net(self, name, batch):
        import nets
        with self.torch.device(self.device):
            model, x = getattr(nets, name)(self.sizes["nets"][name], batch)
        return lambda: model(x)

    def make_vit(self, batch):
        return self._net("vit", batch)

    def make_mobilenet(self, batch):
        return self._net("mobilenet", batch)

    def make_deeplab(self, batch):
        return self._net("deeplab", batch)

    def make_whisper(self, batch):
        return self._net("whisper", batch)

    def make_encoder(self, batch):
        """Attention over 512 tokens, bf16: tensor cores and softmax."""
        torch, f, heads, width = self.torch, self.torch.nn.functional, 16, 1024
        x = torch.randn(batch, 512, width, device=self.device, dtype=torch.bfloat16)
        layers = [[torch.randn(width, n, device=self.device, dtype=torch.bfloat16) / width ** 0.5
                   for n in (3 * width, width)] for _ in range(6)]

        def encoder():
            y = x
            for qkv, out in layers:
                q, k, v = (y @ qkv).view(batch, 512, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
                a = f.scaled_dot_product_attention(q, k, v)
                y = f.layer_norm(y + a.transpose(1, 2).reshape(batch, 512, width) @ out, (width,))
            return y
        return encoder

    def make_mlp(self, batch):
        """Large matrix products, bf16."""
        torch, width = self.torch, 8192
        x = torch.randn(batch, width, device=self.device, dtype=torch.bfloat16)
        weights = [torch.randn(width, width, device=self.device, dtype=torch.bfloat16) / width ** 0.5 for _ in range(4)]

        def mlp():
            y = x
            for w in weights:
                y = torch.nn.functional.gelu(y @ w)
            return y
        return mlp

    # -- jobs of the inference suites

    def make_gpt2(self, batch):
        return Training(self.torch, self.device, batch, self.sizes["gpt2"])

    def make_prefill(self, batch):
        llama = self.llama
        tokens = self.torch.randint(0, self.sizes["llama"]["vocab"], (batch, self.sizes["llama"]["longest"]), device=self.device)
        return lambda: llama.prefill(tokens)

    def make_matmul(self, width):
        torch = self.torch
        a, b = (torch.randn(width, width, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        b = b / width ** 0.5

        def chain():
            y = a
            for _ in range(MATMULS):
                y = y @ b
            return y
        return chain

    def make_fft(self, _):
        torch = self.torch
        x = torch.randn(self.sizes["fft"], device=self.device, dtype=torch.complex64)
        return lambda: torch.fft.fft(torch.fft.fft(x))

    def make_tiny(self, count):
        """A flood of small kernels."""
        torch = self.torch
        x = torch.randn(256, device=self.device)
        y = torch.empty_like(x)

        def flood():
            for _ in range(count):
                torch.add(x, 1.0, out=y)
            return y
        return flood

    def make_deep(self, count):
        """Kernels of about 10 us, launched faster than they run: the queue is full at all times."""
        torch = self.torch
        x = torch.randn(self.sizes["deep"], device=self.device)
        y = torch.empty_like(x)

        def flood():
            for _ in range(count):
                torch.add(x, 1.0, out=y)
            return y
        return flood

    def make_copies(self, _):
        return Copies(self, self.sizes["copies"])


MATMULS = 8  # products in one step of the matmul jobs, of PyTorch and of JAX


class Immediate:
    """A stream on the CPU."""

    def synchronize(self):
        pass
