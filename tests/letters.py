"What the tests of texts share, apart, so that a helper process of test_corpus starts without importing torch."
import os


class Letters:
    "A tokenizer that can be sent to another process: a word's id is its length; two words have their own effects."

    fingerprint, vocab_size = "letters", 100

    def ids(self, text):
        if "exit" in text: os._exit(3)
        if "raise" in text: raise KeyError("the tokenizer gave up")
        return [len(word) for word in text.split()]


def told_text(n=300): return [[f"Story {k} begins with {'x' * (k % 7 + 1)}. It goes on. It ends."] for k in range(n)]


def write_hub(folder):
    "Write a folder in the hub's layout: three tables to train on and one to validate."
    import pyarrow as pa
    import pyarrow.parquet as pq
    (place := folder / "data").mkdir(parents=True)
    for k in range(3): pq.write_table(pa.table({"text": [row for [row] in told_text()[100 * k:100 * (k + 1)]], "n": list(range(100))}), place / f"train-0000{k}-of-00003.parquet")
    pq.write_table(pa.table({"text": [row for [row] in told_text(20)], "n": list(range(20))}), place / "validation-00000-of-00001.parquet")
    return folder
