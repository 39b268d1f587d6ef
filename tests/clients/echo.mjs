// What a script sees in an environment of its own, for tests/unit/test_environments.py.
console.log(JSON.stringify({ arguments: process.argv.slice(2), given: process.env.GIVEN ?? null }));
