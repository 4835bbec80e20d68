"""Adapters to engines and training libraries."""
