"""What Dask's documentation shows of futures, with other import lines, on a private Ray.

https://docs.dask.org/en/stable/futures.html

python examples/futures.py
"""

import numpy as np

from dask_exo.client import (
    Client,
    Lock,
    Queue,
    Variable,
    as_completed,
    fire_and_forget,
    get_client,
    rejoin,
    secede,
)


def inc(x):
    return x + 1


def add(x, y):
    return x + y


def div(x, y):
    return x / y


def fib(n):
    if n < 2:
        return n
    client = get_client()
    secede()
    a_future = client.submit(fib, n - 1)
    b_future = client.submit(fib, n - 2)
    a, b = client.gather([a_future, b_future])
    rejoin()
    return a + b


def load_and_submit(filename, queue):
    client = get_client()
    future = client.submit(len, filename)
    queue.put(future)


def load(name, lock=None):
    with lock:
        return name.upper()


def main() -> None:
    client = Client(n_workers=2, threads_per_worker=1)

    a = client.submit(inc, 10)
    b = client.submit(inc, 20)
    c = client.submit(add, a, b)
    assert c.result() == 32

    futures = client.map(inc, range(100))
    assert client.gather(futures) == list(range(1, 101))

    remote = client.scatter(np.arange(10), broadcast=True)
    assert client.gather([client.submit(np.take, remote, i) for i in range(3)]) == [0, 1, 2]

    assert isinstance(client.submit(div, 1, 0).exception(), ZeroDivisionError)

    best = -1
    seq = as_completed(futures[:5])
    for future in seq:
        y = future.result()
        best = max(best, y)
        if y < 100:
            seq.add(client.submit(add, future, future))  # add back into the loop
    assert best == 192

    assert client.submit(fib, 5).result() == 5

    queue = Queue()
    for filename in ["a", "bc", "def"]:
        fire_and_forget(client.submit(load_and_submit, filename, queue))
    assert sorted(queue.get().result() for _ in range(3)) == [1, 2, 3]

    var = Variable("stopping-criterion")
    var.set(False)
    assert var.get() is False

    lock = Lock()
    assert client.gather(client.map(load, ["x", "y"], lock=lock)) == ["X", "Y"]

    print(client, c, best)
    client.close()


if __name__ == "__main__":
    main()
