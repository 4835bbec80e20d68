from bench import history


def test_a_history_with_one_more_message_has_the_ids_of_the_whole():
    served, peer = history.load()
    messages = history.history(8000)
    history.encode(served, "".join(messages))
    prompt = "".join([*messages, *history.history(200, seed=1)[:1]])
    assert history.encode(served, prompt) == peer.encode(prompt, add_special_tokens=False).ids
    counted = served.encode_counted([messages[0][len("<|im_start|>") : -len("<|im_end|>\n")]])
    assert (counted.hits, counted.misses) == (1, 0)
