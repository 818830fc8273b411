"""Keys in errors and log lines are the ones that the user gave."""

import logging

import numpy as np
import pytest
import tailbound as tb
from tailbound.wording import readable


@pytest.mark.parametrize(
    ("core", "shown"),
    [
        ("round 3 of key 's:W': received", "round 3 of key 'W': received"),
        ("key 'i:5' is bound to", "key 5 is bound to"),
        ("key 'i:-5' is bound to", "key -5 is bound to"),
        ("round 3 of key '': received", "round 3 of an unnamed operation: received"),
        ("keys 's:a b' and 's:it's' have", "keys 'a b' and 'it's' have"),
        ("keys 'i:1' and 's:x' have", "keys 1 and 'x' have"),
        ("keys 's:x' and 'i:1' have", "keys 'x' and 1 have"),
        ("keys 'i:2' and 'i:1' have", "keys 2 and 1 have"),
        ("key 's:s:x' is", "key 's:x' is"),
        ("key 's:i:5' is", "key 'i:5' is"),
        ("key 'p2p:0:1:7' has", "messages of tag 7 from rank 0 to rank 1 has"),
        ("option path='s:t'", "option path='s:t'"),
    ],
)
def test_readable(core, shown):
    assert readable(core) == shown


@pytest.mark.parametrize(("key", "shown"), [("W", "key 'W' is"), (5, "key 5 is")])
def test_error__shows_the_key_as_it_was_given(key, shown):
    with tb.simulate(2, seed=1) as world:

        def step(comm):
            comm.all_reduce(np.ones(8, np.float32), key=key)
            comm.all_reduce(np.ones(9, np.float32), key=key)

        with pytest.raises(tb.KeyBoundError, match=shown) as caught:
            world.run(step)
    assert ":W" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("key", "shown"),
    [("W", "of key 'W': received"), (5, "of key 5: received"), (None, "of an unnamed operation: received")],
)
def test_log__shows_the_key_as_it_was_given(key, shown, caplog):
    caplog.set_level(logging.INFO, "tailbound")
    with tb.simulate(2, seed=1, min_received=0.0, deadline=0.01) as world:
        world.set(1, 0, blackhole=True)
        world.run(lambda comm: comm.all_reduce(np.ones(1000, np.float32), key=key))
    assert any(shown in line for line in caplog.messages), caplog.messages
