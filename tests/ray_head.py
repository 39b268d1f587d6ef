"""A Ray cluster of one node as a child process, for tests: `python ray_head.py FOLDER` says its address and stays."""

import sys

import ray

if __name__ == "__main__":
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 2**20,
        _temp_dir=sys.argv[1],
    )
    print("address", ray.get_runtime_context().gcs_address, flush=True)
    # Whoever started this lets go of the pipe, also when it is killed.
    sys.stdin.read()
    ray.shutdown()
