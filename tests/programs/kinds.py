"""The kinds of random programs; one process with TensorStore serves all of them."""

from tests.programs import kvstores, machine, transactions

DRAWN = {"kvstores": kvstores.drawn, "transactions": transactions.drawn}
"""Function that draws the program of a number."""

MACHINES = {"kvstores": kvstores.KvStores, "transactions": transactions.Transactions}


def drawn(kind, seed):
    """Return program number `seed` with its kind."""
    return kind, DRAWN[kind](seed)


def outcome(library, program):
    kind, program = program
    return machine.run(MACHINES[kind], library, program)
