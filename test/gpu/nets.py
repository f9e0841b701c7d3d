# SPDX-License-Identifier: Apache-2.0
"""The models of the reports beyond ResNet, as plain torch.nn: ViT, MobileNet, DeepLab, and an encoder-decoder like Whisper.

Each builder takes its sizes and a batch size and returns the module and its input. Weights are random. They keep the size of
the activations, because a lost kernel must change the output.
"""
import torch
from torch import nn

# The sizes of models.FULL["nets"] are those of the published models.


def initialized(net):
    """Convolutions that keep the size of the activations, also with few channels per group."""
    for part in net.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return net.eval()


def attention(kind, width, heads):
    return kind(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


def encoder(width, heads, layers):
    return nn.TransformerEncoder(attention(nn.TransformerEncoderLayer, width, heads), layers, nn.LayerNorm(width), enable_nested_tensor=False)


class ViT(nn.Module):
    def __init__(self, image, patch, width, heads, layers, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.body, self.head = encoder(width, heads, layers), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)  # batch, patches, width
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.body(x)[:, 0])


def vit(sizes, batch):
    return initialized(ViT(*sizes)), torch.randn(batch, 3, sizes[0], sizes[0])


def convolution(n, m, kernel, stride=1, dilation=1, groups=1, act=nn.ReLU):
    """A convolution that keeps height and width (over the stride), its norm and its activation."""
    parts = [nn.Conv2d(n, m, kernel, stride, dilation * (kernel - 1) // 2, dilation, groups, bias=False), nn.BatchNorm2d(m)]
    return nn.Sequential(*parts, *([act()] if act else []))


class Inverted(nn.Module):
    """The block of MobileNet: wider, depthwise, narrower. Equal shapes add up."""

    def __init__(self, n, m, stride, expand):
        super().__init__()
        wide = n * expand
        self.add = stride == 1 and n == m
        self.body = nn.Sequential(*([convolution(n, wide, 1, act=nn.ReLU6)] if expand > 1 else []),
                                  convolution(wide, wide, 3, stride, groups=wide, act=nn.ReLU6), convolution(wide, m, 1, act=None))

    def forward(self, x):
        return x + self.body(x) if self.add else self.body(x)


def mobilenet(sizes, batch):
    """sizes: image, channels of the stem, [(expand, channels, blocks, stride)], channels at the end, classes."""
    image, n, stages, last, classes = sizes
    parts = [convolution(3, n, 3, 2, act=nn.ReLU6)]
    for expand, m, blocks, stride in stages:
        for i in range(blocks):
            parts.append(Inverted(n, m, stride if i == 0 else 1, expand))
            n = m
    parts += [convolution(n, last, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return initialized(nn.Sequential(*parts)), torch.randn(batch, 3, image, image)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, n, m, stride, dilation):
        super().__init__()
        self.body = nn.Sequential(convolution(n, m, 3, stride, dilation), convolution(m, m, 3, 1, dilation, act=None))
        self.short = convolution(n, m, 1, stride, act=None) if stride > 1 or n != m else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


class DeepLab(nn.Module):
    """Semantic segmentation: a residual network with a dilated last stage, convolutions of several dilations side by side
    and the mean of the image, then a map of classes in the size of the image."""

    def __init__(self, stages, side, rates, classes):
        super().__init__()
        n, blocks = stages[0][0], []
        stem = [convolution(3, n, 7, 2), nn.MaxPool2d(3, 2, 1)]
        for m, count, stride, dilation in stages:
            for i in range(count):
                blocks.append(Residual(n, m, stride if i == 0 else 1, dilation))
                n = m
        self.body = nn.Sequential(*stem, *blocks)
        self.beside = nn.ModuleList([convolution(n, side, 1)] + [convolution(n, side, 3, dilation=r) for r in rates])
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), convolution(n, side, 1))
        self.head = nn.Sequential(convolution(side * (len(rates) + 2), side, 1), convolution(side, side, 3), nn.Conv2d(side, classes, 1))

    def forward(self, x):
        features = self.body(x)
        found = [part(features) for part in self.beside] + [self.mean(features).expand(-1, -1, *features.shape[2:])]
        return nn.functional.interpolate(self.head(torch.cat(found, 1)), x.shape[2:], mode="bilinear", align_corners=False)


def deeplab(sizes, batch):
    """sizes: image, [(channels, blocks, stride, dilation)], channels of the parallel part, its dilations, classes."""
    image, *rest = sizes
    return initialized(DeepLab(*rest)), torch.randn(batch, 3, image, image)


class Whisper(nn.Module):
    """Speech to tokens: convolutions over the spectrum, an encoder, and a decoder that takes the likeliest token each time.
    The decoder has no cache: every step runs over all tokens so far."""

    def __init__(self, bands, frames, width, heads, layers, words, steps):
        super().__init__()
        self.steps = steps
        self.narrow, self.shorten = nn.Conv1d(bands, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.places = nn.Parameter(torch.randn((frames + 1) // 2, width) * 0.02)
        self.encoder = encoder(width, heads, layers)
        self.words, self.order = nn.Embedding(words, width), nn.Parameter(torch.randn(steps, width) * 0.02)
        self.decoder = nn.TransformerDecoder(attention(nn.TransformerDecoderLayer, width, heads), layers, nn.LayerNorm(width))

    def forward(self, x):
        gelu = nn.functional.gelu
        memory = self.encoder(gelu(self.shorten(gelu(self.narrow(x)))).transpose(1, 2) + self.places)
        tokens = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
        for n in range(1, self.steps + 1):
            later = torch.full((n, n), float("-inf"), device=x.device).triu(1)
            out = self.decoder(self.words(tokens) + self.order[:n], memory, tgt_mask=later)
            logits = out[:, -1] @ self.words.weight.T
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
        return logits


def whisper(sizes, batch):
    return initialized(Whisper(*sizes)), torch.randn(batch, *sizes[:2])


class Denoise(nn.Module):
    """A residual block with the time of the step, and attention over all places at the lower resolutions."""

    def __init__(self, n, m, time, heads):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, m, 3, padding=1))
        self.time = nn.Linear(time, m)
        self.second = nn.Sequential(nn.GroupNorm(8, m), nn.SiLU(), nn.Conv2d(m, m, 3, padding=1))
        self.short = nn.Conv2d(n, m, 1) if n != m else nn.Identity()
        self.norm, self.attention = (nn.GroupNorm(8, m), nn.MultiheadAttention(m, heads, batch_first=True)) if heads else (None, None)

    def forward(self, x, t):
        y = self.second(self.first(x) + self.time(t)[:, :, None, None]) + self.short(x)
        if self.attention is None:
            return y
        places = self.norm(y).flatten(2).transpose(1, 2)
        return y + self.attention(places, places, places, need_weights=False)[0].transpose(1, 2).reshape(y.shape)


class UNet(nn.Module):
    """Down and up again, with every level's output handed across."""

    def __init__(self, channels, width, levels, blocks):
        super().__init__()
        time = self.width = 4 * width
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.stem, self.down, self.up, n, kept = nn.Conv2d(channels, width, 3, padding=1), nn.ModuleList(), nn.ModuleList(), width, [width]
        for i, times in enumerate(levels):
            for _ in range(blocks):
                self.down.append(Denoise(n, width * times, time, 8 if i else 0))
                n = width * times
                kept.append(n)
            if i + 1 < len(levels):
                self.down.append(nn.Conv2d(n, n, 3, 2, 1))
                kept.append(n)
        self.middle = Denoise(n, n, time, 8)
        for i, times in reversed(list(enumerate(levels))):
            for _ in range(blocks + 1):
                self.up.append(Denoise(n + kept.pop(), width * times, time, 8 if i else 0))
                n = width * times
            if i:
                self.up.append(nn.ConvTranspose2d(n, n, 2, 2))
        self.head = nn.Sequential(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, channels, 3, padding=1))

    def forward(self, x):
        t = self.time(torch.ones(x.shape[0], self.width, device=x.device))
        y = self.stem(x)
        kept = [y]
        for part in self.down:
            y = part(y, t) if isinstance(part, Denoise) else part(y)
            kept.append(y)
        y = self.middle(y, t)
        for part in self.up:
            y = part(torch.cat((y, kept.pop()), 1), t) if isinstance(part, Denoise) else part(y)
        return self.head(y)


def unet(sizes, batch):
    """sizes: image, its channels, width, factors of the width by level, blocks of a level."""
    image, channels, width, levels, blocks = sizes
    return initialized(UNet(channels, width, levels, blocks)), torch.randn(batch, channels, image, image)
