import sys

from setuptools import Extension, setup

FLAGS = "-O2 -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wno-missing-field-initializers"
# Other interpreters have no such API, or a slow one: there the client does the same in Python.
joining = Extension(
    "insync.replication.client._joining", ["csrc/isr_joining.c"], extra_compile_args=FLAGS.split()
)

setup(
    cffi_modules=["csrc/build_storage.py:ffi", "csrc/build_transport.py:ffi"],
    ext_modules=[joining] if sys.implementation.name == "cpython" else [],
)
