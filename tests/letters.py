"What a helper process of test_corpus needs, apart, so that it starts without importing torch."
import os


class Letters:
    "A tokenizer that can be sent to another process: a word's id is its length; two words have their own effects."

    fingerprint, vocab_size = "letters", 100

    def ids(self, text):
        if "exit" in text: os._exit(3)
        if "raise" in text: raise KeyError("the tokenizer gave up")
        return [len(word) for word in text.split()]


def told_text(n=300): return [[f"Story {k} begins with {'x' * (k % 7 + 1)}. It goes on. It ends."] for k in range(n)]
