"""The bodies of requests and answers; every list and text has its bound here."""
