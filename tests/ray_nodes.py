"""A Ray cluster of several nodes as a child process: `python ray_nodes.py CPUS…` says its address and takes orders.

An order is a line: `kill` ends the node that came last, without a farewell; `add CPUS` brings another one.
"""

import sys

from ray.cluster_utils import Cluster

NODE = {"object_store_memory": 80 * 2**20}

if __name__ == "__main__":
    head, *others = map(int, sys.argv[1:])
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": head, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=cpus, **NODE) for cpus in others]
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        order, *cpus = line.split()
        if order == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            nodes.append(cluster.add_node(num_cpus=int(cpus[0]), **NODE))
        print("done", flush=True)
    cluster.shutdown()
