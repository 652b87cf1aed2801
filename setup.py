from setuptools import Extension, setup

FLAGS = "-O2 -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wno-missing-field-initializers"
joining = Extension(
    "insync.replication.client.producer._joining",
    [f"csrc/{name}.c" for name in ("isr_joining", "isr_growing", "isr_handing", "isr_crc32c")],
    depends=[f"csrc/isr_{name}.h" for name in ("joining", "growing", "write", "header", "batch", "crc32c")],
    extra_compile_args=FLAGS.split(),
)
framing = Extension(
    "insync.transport._framing",
    [f"csrc/{name}.c" for name in ("isr_framing", "isr_crc32c")],
    depends=["csrc/isr_crc32c.h"],
    extra_compile_args=FLAGS.split(),
)

setup(
    cffi_modules=["csrc/build_storage.py:ffi", "csrc/build_transport.py:ffi"],
    ext_modules=[joining, framing],
)
