"""The parts of a workload as a document states them: model, traffic, training method, GPUs, start. Pure.

``broker.domain.planning.workload`` joins them to workloads and requests.
"""
