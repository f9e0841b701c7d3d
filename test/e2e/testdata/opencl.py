# SPDX-License-Identifier: Apache-2.0
"""A pyopencl program without support for XSched. Prints whether its results are correct."""

import numpy
import pyopencl as cl

context = cl.create_some_context(interactive=False)
queue = cl.CommandQueue(context)
a = numpy.arange(1 << 16, dtype=numpy.float32)
source = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=a)
target = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, a.nbytes)
program = cl.Program(
    context,
    "__kernel void f(__global const float *a, __global float *r)"
    "{ int i = get_global_id(0); r[i] = a[i] * 2 + 1; }",
).build()
for _ in range(100):
    event = program.f(queue, a.shape, None, source, target)
event.wait()
result = numpy.empty_like(a)
cl.enqueue_copy(queue, result, target)
print("equal", bool((result == a * 2 + 1).all()))
