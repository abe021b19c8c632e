"""Load for the service: clients, processes and peers, for benchmarks/serve.py and slow tests."""
