"""Baseline JPEG: headers parsed on the host, everything behind them decoded in Triton."""
