from setuptools import setup

setup(cffi_modules=["csrc/build_storage.py:ffi", "csrc/build_transport.py:ffi"])
