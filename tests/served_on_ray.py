"""Serves on a Ray cluster by what `build` makes of a layout, as a configuration file of Ray Serve has it done.

`python served_on_ray.py ADDRESS LAYOUT` (JSON) says where it listens; each further line that it reads it answers with
the number of replicas that run.
"""

import json
import sys

from onebert_store.command.cluster import connect, ray

# isort: split
from ray import serve

from onebert_ray.application import FRONT_ENDS, NAME, REPLICAS, build

if __name__ == "__main__":
    connect(sys.argv[1])
    serve.start(proxy_location="Disabled")
    serve.run(build(json.loads(sys.argv[2])), name=NAME, route_prefix=None)
    where, *_ = serve.get_deployment_handle(FRONT_ENDS, NAME).broadcast("address").results()
    print("Listening on", where, flush=True)
    for _ in sys.stdin:
        print(serve.status().applications[NAME].deployments[REPLICAS].replica_states.get("RUNNING", 0), flush=True)
    serve.delete(NAME)
    ray.shutdown()
