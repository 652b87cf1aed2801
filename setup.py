import sys

from setuptools import Extension, setup

FLAGS = "-O2 -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wno-missing-field-initializers"
# Other interpreters have no such API, or a slow one: there Python does the same.
joining = Extension(
    "insync.replication.client.producer._joining",
    [f"csrc/{name}.c" for name in ("isr_joining", "isr_sending", "isr_handing")],
    depends=["csrc/isr_joining.h", "csrc/isr_slots.h"],
    extra_compile_args=FLAGS.split(),
)
framing = Extension(
    "insync.transport._framing",
    [f"csrc/{name}.c" for name in ("isr_framing", "isr_outgoing", "isr_crc32c")],
    depends=["csrc/isr_framing.h", "csrc/isr_slots.h", "csrc/isr_crc32c.h"],
    extra_compile_args=FLAGS.split(),
)

setup(
    cffi_modules=["csrc/build_storage.py:ffi", "csrc/build_transport.py:ffi"],
    ext_modules=[joining, framing] if sys.implementation.name == "cpython" else [],
)
