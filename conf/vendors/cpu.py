"""This machine's processors, which have a driver for everything: the vendor of every run without an accelerator."""

from __future__ import annotations

from conf.vendors import CPU, Vendor


class Cpu(Vendor):
    name = CPU
    order = 100


VENDOR = Cpu()
