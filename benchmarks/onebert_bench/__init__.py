"""`onebert bench`, and the harness of every script behind the published results.

script: command lines and progress. workload: bases, texts and random tasks. servers: started servers with these tasks,
and the engine alone. load: HTTP load, closed loop and open. timing: turns of several runs. numbers: percentiles,
spreads, ratios. report: tables, sections of pages. machine: its facts; memory and processor time of processes.
checkout: this tree without an installation. hugging_face: the padded model that others run.
"""
