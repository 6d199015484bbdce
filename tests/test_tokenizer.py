"""The tokenizer beside the `tokenizers` library: every code point, hostile strings, learning, files."""
import json
import pickle
import re
import tracemalloc
from functools import lru_cache

import pytest
import transformers as hf
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.implementations import BertWordPieceTokenizer

from minibert.text.wordpiece import fit_lengths, place_pieces
from minibert.core.errors import UserError
from minibert.text.cleaning import SPECIALS, Cleaner, align
from minibert.tokenizer import WordPieceTokenizer
from minibert.text.vocabulary import count_words, first_pieces, learn_pieces

A, B = "anna lost her red ball .", "she found it under the bed ."
RULES = {  # ours, theirs
    "uncased": (dict(), dict(lowercase=True)),
    "cased": (dict(lowercase=False), dict(lowercase=False)),
    "accents": (dict(strip_accents=False), dict(lowercase=True, strip_accents=False)),
    "stripped": (dict(lowercase=False, strip_accents=True, tokenize_chinese_chars=False),
                 dict(lowercase=False, strip_accents=True, handle_chinese_chars=False)),
}
POOLS = [  # where hostile characters come from
    "abcdefgABCDEFG 0123.,'[]##", " \t\n\r\x0b\x1c\x85\u00a0\u2003\u2028\u3000", "\x00\x01\u200b\ufeff\u00ad\ufffd",
    "\u0300\u0301\u0316\u0345\u0338\u05b0\u093c\u0e31\u0f73\u0344", "\u302e\u302f\u1b44\u1baa\ua953\U0001d165\U0001d16d\u1dfb\u08d4\u08e1",
    "\U00011442\U0001e001\U0001e944\u0898\u1ac1\u1715\U00016ff0\U00011938\U0001193d", "éÉṩÅﬁßẞİıΣσς\u1e9b", "東京豈\u2f00か가각가",
    "👩\u200d👧🏽🇬🇧\ufe0f", "שלום\u200fمرحبا", "ＡＢｃ１", "«»—…¿\u2e43\u166d\u1734$+<=>^`|~©",
]
SPECIAL_TEXTS = [*SPECIALS, "[mask]", "a[MASK]b", "a" * 100, "b" * 101, "é" * 100, "##ed", "[[SEP]]"]
HOSTILE = st.one_of(st.text("".join(POOLS), max_size=24), *(st.text(pool, max_size=6) for pool in POOLS[1:6]))
STRING = st.lists(st.one_of(HOSTILE, st.text(max_size=12), st.sampled_from(SPECIAL_TEXTS)), max_size=3).map("".join)


DECODER = decoders.WordPiece(prefix="##", cleanup=True)  # as transformers gives every BERT


@lru_cache
def bert_vocab(folder):
    return (folder / "bert-base-uncased" / "vocab.txt").read_text(encoding="utf8").split("\n")[:-1]


@pytest.fixture(scope="session")
def tokenizers(shared_data):
    "Ours and theirs for each set of rules, with BERT's own vocabulary."
    vocab = {piece: k for k, piece in enumerate(bert_vocab(shared_data))}
    return {name: (WordPieceTokenizer(vocab, **ours, cache_size=500), BertWordPieceTokenizer(vocab, **theirs))
            for name, (ours, theirs) in RULES.items()}


@pytest.fixture(scope="session")
def wikitext(shared_data):
    from datasets import load_dataset
    return {split: list(load_dataset(str(shared_data / "wikitext"), "wikitext-2-v1", split=split)["text"])
            for split in ("train", "validation")}


def check_same(ours, theirs, text, pair=None):
    mine, other = ours.encode(text, pair, truncation=False, return_offsets=True), theirs.encode(text, pair)
    assert mine["input_ids"] == other.ids
    assert mine["offset_mapping"] == other.offsets
    assert mine["token_type_ids"] == other.type_ids
    assert mine["attention_mask"] == other.attention_mask
    if pair is None:
        ids = other.ids[1:-1]
        assert ours.tokenize(text) == other.tokens[1:-1]
        assert [k for k, _ in place_pieces(text, ours)] == ids
        assert ours.decode(ids, skip_special_tokens=False) == DECODER.decode(other.tokens[1:-1])


def check_truncated(ours, theirs, text, pair, length):
    theirs.enable_truncation(length, strategy="longest_first")
    try: other = theirs.encode(text, pair)
    finally: theirs.no_truncation()
    mine = ours.encode(text, pair, max_length=length, return_offsets=True)
    assert (mine["input_ids"], mine["offset_mapping"], mine["token_type_ids"]) == (other.ids, other.offsets, other.type_ids)


def strings(examples):
    "A test of `examples` strings, each alone, in a pair, and cut."
    def decorate(test):
        return settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                        suppress_health_check=list(HealthCheck))(given(text=STRING, pair=STRING, length=st.integers(3, 12))(test))
    return decorate


def check_string(tokenizers, text, pair, length):
    for name in RULES: check_same(*tokenizers[name], text)
    for name in ("uncased", "cased"):
        check_same(*tokenizers[name], text, pair)
        check_truncated(*tokenizers[name], text, pair, length)


@strings(500)
def test_strings(tokenizers, text, pair, length):
    check_string(tokenizers, text, pair, length)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", range(4))
def test_100_000_strings(tokenizers, part):
    "In four parts, which the workers share."
    @seed(part)
    @strings(25_000)
    def check(text, pair, length): check_string(tokenizers, text, pair, length)
    check()


@pytest.mark.parametrize("rules", RULES)
def test_code_points(rules):
    "A sample of code points, each between two letters; all of those below 0x3000."
    codes = [*range(0x3000), *range(0x3000, 0x20000, 11), *range(0x20000, 0x110000, 499)]
    check_code_points(rules, codes)


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
def test_every_code_point(rules):
    check_code_points(rules, range(0x110000))


def check_code_points(rules, codes):
    ours, theirs = RULES[rules]
    clean = Cleaner(ours.get("lowercase", True), ours.get("strip_accents"), ours.get("tokenize_chinese_chars", True))
    normalizer = normalizers.BertNormalizer(clean_text=True, **{"handle_chinese_chars": True, "strip_accents": None} | theirs)
    splitter = pre_tokenizers.BertPreTokenizer()
    wrong = []
    for code in codes:
        if 0xD800 <= code < 0xE000: continue
        text = f"a{chr(code)}b"
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        if clean(text).split() != expected or align(text, clean)[0].split() != expected: wrong.append(hex(code))
    assert not wrong


def test_validation_text(tokenizers, wikitext):
    ours, theirs = tokenizers["uncased"]
    lines = wikitext["validation"]
    expected = [e.ids for e in theirs.encode_batch(lines, add_special_tokens=False)]
    assert [ours.ids(line) for line in lines] == expected
    assert ours.ids("".join(lines)) == [k for ids in expected for k in ids]


def learn_theirs(texts, size, extra=(), **options):
    theirs = BertWordPieceTokenizer(lowercase=True)
    theirs.train_from_iterator(texts, vocab_size=size, show_progress=False, special_tokens=[*SPECIALS, *extra], **options)
    return sorted(theirs.get_vocab(), key=theirs.token_to_id)


def check_learning(texts, size, **options):
    "Told our order of the characters they learn our pieces; told theirs, we learn theirs."
    limit = options.pop("limit_alphabet", 1000)
    frequency = options.get("min_frequency", 2)
    ours = WordPieceTokenizer.train(texts, size, min_frequency=frequency, limit_alphabet=limit).pieces
    words = count_words(texts, Cleaner())
    alphabet = first_pieces(words, limit)
    assert learn_theirs(texts, size, alphabet, min_frequency=frequency, limit_alphabet=limit) == ours
    alone = learn_theirs(texts, size, min_frequency=frequency, limit_alphabet=limit)
    assert learn_pieces(words, size, frequency, alphabet=alone[5:5 + len(alphabet)]) == alone
    return ours, alone


@pytest.mark.parametrize("split, size", [("validation", 2000), pytest.param("train", 8192, marks=pytest.mark.slow)])
def test_learns_the_same(wikitext, split, size):
    ours, alone = check_learning(wikitext[split], size)
    assert len(ours) == size
    assert len(set(ours) - set(alone)) < 20  # ties alone


@pytest.mark.parametrize("text", ["aaaa aaa aaaaa baaab aa " * 3, "abab abab ab ba bab abcabcabc bcab " * 2,
                                  "She sells sea-shells; shells she sells. Café ÇA naïve 東京 " * 2])
@pytest.mark.parametrize("frequency", [1, 2, 5])
def test_learns_the_same_on_strange_texts(text, frequency):
    check_learning([text, "aab"], 60, min_frequency=frequency)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text("abc ", min_size=3, max_size=40), min_size=1, max_size=8).filter(lambda t: any(x.strip() for x in t)),
       st.integers(11, 40), st.integers(1, 3))
def test_learns_the_same_on_any_text(texts, size, frequency):
    check_learning(texts, size, min_frequency=frequency)


def test_rare_characters_are_left_out():
    ours, _ = check_learning(["aaab aabb bbbb cab zb bz" * 2], 30, limit_alphabet=2)
    assert "z" not in ours and "##c" not in ours


STRATEGIES = [(n, m, room) for n in range(9) for m in range(9) for room in range(10)]


def test_truncation_equals_theirs():
    vocab = {p: k for k, p in enumerate([*SPECIALS, "a"])}
    ours, theirs = WordPieceTokenizer(vocab), BertWordPieceTokenizer(vocab)
    for n, m, room in STRATEGIES:
        for strategy in ("longest_first", "only_first", "only_second"):
            theirs.enable_truncation(room + 3, strategy=strategy)
            try: expected = theirs.encode("a " * n, "a " * m).ids
            except Exception: expected = None
            if room == 0 and strategy != "longest_first": continue  # they empty both then, we refuse
            try: mine = ours.encode("a " * n, "a " * m, max_length=room + 3, truncation=strategy)["input_ids"]
            except AssertionError: mine = None
            assert mine == expected, (n, m, room, strategy)


def test_padding_and_batches():
    tokenizer = WordPieceTokenizer([*SPECIALS, *A.split(), *B.split()[:-1]])
    batch = tokenizer.encode_batch([A, (A, B), B], return_tensors="pt", return_offsets=True)
    assert batch["input_ids"].shape == (3, 16) and batch["offset_mapping"].shape == (3, 16, 2)
    for row, item in enumerate([(A,), (A, B), (B,)]):
        alone = tokenizer.encode(*item)
        n = len(alone["input_ids"])
        assert batch["input_ids"][row, :n].tolist() == alone["input_ids"]
        assert batch["attention_mask"][row].tolist() == [1] * n + [0] * (16 - n)
        assert (batch["input_ids"][row, n:] == tokenizer.pad_id).all()
    full = tokenizer.encode_batch([A], max_length=20, padding="max_length")
    assert len(full["input_ids"][0]) == 20
    lengths = lambda padding: [len(r) for r in tokenizer.encode_batch([A, (A, B)], max_length=20, padding=padding)["input_ids"]]
    assert lengths(False) == lengths("do_not_pad") == [8, 16]
    assert lengths(True) == lengths("longest") == [16, 16] and lengths("max_length") == [20, 20]


def test_decode_equals_theirs():
    tokenizer = WordPieceTokenizer([*SPECIALS, "a", "##b", "c", ".", "##.", "'s", "n't", "##'re", "'", "?!", "##?"])
    for ids in ([5, 6, 7, 8], [6, 5, 6, 6], [7], [], [8, 5, 9, 8, 8], [5, 10, 5, 11, 12, 13, 5, 13, 14, 15, 10]):
        assert tokenizer.decode(ids) == DECODER.decode([tokenizer.pieces[k] for k in ids])
    assert tokenizer.decode([2, 5, 6, 3]) == "ab"
    assert tokenizer.decode([2, 5, 3], skip_special_tokens=False) == "[CLS] a [SEP]"


@pytest.fixture(scope="module", params=[12, pytest.param(4, marks=pytest.mark.slow)])
def rows(wikitext, request):
    "Real rows, each twelfth or fourth, and what real text has too little of."
    return [*wikitext["validation"][::request.param], "It's what they've said: \"Don't!\" I'm sure, aren't you?", "n't 've ' s ' ... ?!", "do not", *POOLS]


@pytest.mark.parametrize("own", [False, True])
def test_decode_equals_that_of_the_saved_folder(own, tokenizers, rows, tmp_path):
    "With the clean-up of spaces, without it, and as the folder itself says."
    ours = WordPieceTokenizer(tokenizers["uncased"][0].vocab, clean_up_tokenization_spaces=own)
    ours.save_pretrained(tmp_path)
    theirs, again = hf.AutoTokenizer.from_pretrained(tmp_path), WordPieceTokenizer.from_pretrained(tmp_path)
    changed = 0
    for text in rows:
        ids = ours.encode(text, truncation=False)["input_ids"]
        for clean_up in (None, False, True):
            for skip in (True, False):
                expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=clean_up)
                for mine in (ours, again):
                    assert mine.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=clean_up) == expected
        assert ours.ids(ours.decode(ids[1:-1], clean_up_tokenization_spaces=False)) == ids[1:-1] or ours.unk_id in ids
        changed += ours.decode(ids) != " ".join(ours.decode([k]) for k in ids)
    assert changed > 0.1 * len(rows)


@pytest.mark.parametrize("rules", RULES)
def test_transformers_opens_what_we_save(rules, tokenizers, tmp_path):
    ours = WordPieceTokenizer(tokenizers[rules][0].vocab, **RULES[rules][0], max_length=77)
    ours.save_pretrained(tmp_path)
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path)
    again = WordPieceTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("BertTokenizer") and len(theirs) == ours.vocab_size
    assert theirs.model_max_length == again.max_length == 77 and theirs.mask_token_id == ours.mask_id
    for text in [*SPECIAL_TEXTS, *POOLS, A, "Café ÉTÉ, naïve 東京 ok", ""]:
        for pair in (None, B):
            expected = theirs(text, pair, return_offsets_mapping=True)
            for mine in (ours, again):
                got = mine.encode(text, pair, truncation=False, return_offsets=True)
                assert {k: list(v) for k, v in got.items()} == {k: list(expected[k]) for k in got}


def test_tokenizer_json_is_what_tokenizers_writes(tmp_path):
    vocab = [*SPECIALS, "a", "é", "##東"]
    WordPieceTokenizer(vocab).save_pretrained(tmp_path)
    BertWordPieceTokenizer({p: k for k, p in enumerate(vocab)}).save(str(tmp_path / "theirs.json"))
    ours, theirs = (json.loads((tmp_path / name).read_text(encoding="utf8")) for name in ("tokenizer.json", "theirs.json"))
    ours.pop("post_processor"), theirs.pop("post_processor")  # a template, as transformers writes it; theirs is fixed
    assert ours == theirs


ENT = dict(content="[ENT]", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)


def with_file(folder, name, change):
    "A saved tokenizer whose file `name` was changed by hand."
    WordPieceTokenizer([*SPECIALS, "a", "b", "mask", "[", "]", "ent"]).save_pretrained(folder)
    path = folder / name
    content = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    change(content)
    path.write_text(json.dumps(content), encoding="utf8")
    return folder


ADDED = {  # a file, what it gets, a word of the refusal
    "added_tokens": ("tokenizer.json", lambda c: c["added_tokens"].append(dict(ENT, id=11)), "[ENT]"),
    "added_tokens_decoder": ("tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"11": ENT}), "[ENT]"),
    "additional_special_tokens": ("tokenizer_config.json", lambda c: c.update(additional_special_tokens=["[ENT]"]), "[ENT]"),
    "as dictionaries": ("tokenizer_config.json", lambda c: c.update(additional_special_tokens=[dict(ENT, __type="AddedToken")]), "[ENT]"),
    "extra_special_tokens": ("tokenizer_config.json", lambda c: c.update(extra_special_tokens={"entity_token": "[ENT]"}), "[ENT]"),
    "model_specific": ("tokenizer_config.json", lambda c: c.update(entity_token="[ENT]"), "[ENT]"),
    "in the map": ("special_tokens_map.json", lambda c: c.update(additional_special_tokens=["[ENT]"]), "[ENT]"),
    "added_tokens.json": ("added_tokens.json", lambda c: c.update({"[ENT]": 11}), "[ENT]"),
    "another mask_token": ("tokenizer_config.json", lambda c: c.update(mask_token="[ENT]"), "[ENT]"),
    "another in the map": ("special_tokens_map.json", lambda c: c.update(mask_token=ENT), "[ENT]"),
    "bos_token": ("tokenizer_config.json", lambda c: c.update(bos_token="<s>"), "<s>"),
    "another cleaning": ("tokenizer.json", lambda c: c.update(normalizer={"type": "NFKC"}), "NFKC"),
    "no cleaning": ("tokenizer.json", lambda c: c["normalizer"].update(clean_text=False), "clean_text"),
    "another splitting": ("tokenizer.json", lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
    "longer words": ("tokenizer.json", lambda c: c["model"].update(max_input_chars_per_word=200), "200"),
    "Japanese": ("tokenizer_config.json", lambda c: c.update(tokenizer_class="BertJapaneseTokenizer"), "BertJapaneseTokenizer"),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_would_change_ids_is_refused(name, tmp_path):
    file, change, said = ADDED[name]
    with pytest.raises(UserError, match=re.escape(said)): WordPieceTokenizer.from_pretrained(with_file(tmp_path, file, change))


def test_files_that_are_no_json_are_refused(tmp_path):
    WordPieceTokenizer([*SPECIALS, "a"]).save_pretrained(tmp_path)
    for text in ('{"model": ', "[1]", ""):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(UserError, match="tokenizer_config.json"): WordPieceTokenizer.from_pretrained(tmp_path)


PLAIN = {  # what folders of BERT hold, and what changes nothing
    "the five in all files": ("added_tokens.json", lambda c: c.update({"[MASK]": 4, "[PAD]": 0})),
    "the five with flags": ("special_tokens_map.json", lambda c: c.update(mask_token=dict(ENT, content="[MASK]"), cls_token="[CLS]")),
    "the slow form": ("tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"4": dict(ENT, content="[MASK]")}, additional_special_tokens=[])),
    "nothing more": ("tokenizer_config.json", lambda c: c.update(extra_special_tokens=None, add_bos_token=False, never_split=None, bos_token=None)),
    "an end of BERT's": ("tokenizer_config.json", lambda c: c.update(eos_token="[SEP]")),
    "the fast class": ("tokenizer_config.json", lambda c: c.update(tokenizer_class="BertTokenizerFast")),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_folders_open_as_in_transformers(name, tmp_path):
    folder = with_file(tmp_path, *PLAIN[name])
    ours, theirs = WordPieceTokenizer.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    for text in ("a[MASK]b [CLS] [ENT]", "[mask] B"): assert ours.encode(text)["input_ids"] == theirs(text)["input_ids"]


def test_the_config_has_the_last_word(tmp_path):
    "As in transformers, where the two files say different things."
    def disagree(config): config.update(do_lower_case=False, strip_accents=False, tokenize_chinese_chars=False)
    folder = with_file(tmp_path, "tokenizer_config.json", disagree)
    ours, theirs = WordPieceTokenizer.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    assert ours.clean.options == dict(lowercase=False, strip_accents=False, handle_chinese_chars=False)
    for text in ("a A", "b\u6771a", "\u00e0"): assert ours.encode(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.tokenize("a A") == ["a", "[UNK]"]


def test_fingerprint_is_of_all_that_changes_ids(tmp_path):
    pieces = [*SPECIALS, "a", "##b", "A"]
    make = lambda **rules: WordPieceTokenizer(pieces, **rules).fingerprint
    same = make()
    other = [make(lowercase=False), make(strip_accents=False), make(tokenize_chinese_chars=False), make(lowercase=False, strip_accents=True),
             WordPieceTokenizer([*pieces[:-2], "A", "##b"]).fingerprint, WordPieceTokenizer([*pieces, "c"]).fingerprint]
    assert len({same, *other}) == 7
    assert same == make(strip_accents=True) == make(max_length=9, cache_size=0, clean_up_tokenization_spaces=True)
    WordPieceTokenizer(pieces).save_pretrained(tmp_path)
    assert same == WordPieceTokenizer.from_pretrained(tmp_path).fingerprint == pickle.loads(pickle.dumps(WordPieceTokenizer(pieces))).fingerprint


def test_vocab_alone_and_json_alone(tmp_path):
    tokenizer = WordPieceTokenizer([*SPECIALS, "A", "a"], lowercase=False)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert WordPieceTokenizer.from_pretrained(tmp_path).tokenize("A a") == ["A", "a"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert WordPieceTokenizer.from_pretrained(tmp_path).tokenize("A a") == ["A", "a"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(tokenizer.pieces).encode())
    assert WordPieceTokenizer.from_pretrained(tmp_path).tokenize("A a") == ["a", "a"]


def test_users_mistakes(tmp_path):
    def refused(words, call, *args, **options):
        with pytest.raises(UserError, match=re.escape(words)): call(*args, **options)
    refused("10", WordPieceTokenizer.train, ["some text"], 10)
    for texts in ([], ["  ", "\n"]): refused("no word", WordPieceTokenizer.train, texts)
    refused("[MASK]", WordPieceTokenizer, SPECIALS[:4])
    refused("7 pieces", WordPieceTokenizer, [*SPECIALS, "a", "a"])
    refused("0 to 4", WordPieceTokenizer, {p: 2 * k for k, p in enumerate(SPECIALS)})
    refused(str(tmp_path), WordPieceTokenizer.from_pretrained, tmp_path)
    refused("nobody/nothing", WordPieceTokenizer.from_pretrained, "nobody/nothing", local_files_only=True)
    refused("./no/such/folder", WordPieceTokenizer.from_pretrained, "./no/such/folder")
    with pytest.raises(FileNotFoundError, match="none.txt"): WordPieceTokenizer.from_vocab(tmp_path / "none.txt")
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}}}')
    refused("BPE", WordPieceTokenizer.from_pretrained, tmp_path)


def test_programmers_mistakes_stop_at_once():
    t = WordPieceTokenizer([*SPECIALS, "a", "b"])
    for call in (lambda: t.encode_batch("hello"), lambda: t.encode(["a", "b"]), lambda: t.encode_batch([]), lambda: t.encode_batch([("a", "b", "a")]),
                 lambda: t.encode("a", "b", max_length=2), lambda: t.encode("a a a", "b", max_length=5, truncation="only_second"),
                 lambda: t.decode([-1]), lambda: WordPieceTokenizer.train("some text")):
        with pytest.raises(AssertionError): call()
    for call in (lambda: t.encode("a", truncation="middle"), lambda: t.encode("a", padding="yes"), lambda: t.decode([99]), lambda: t.ids(None), lambda: t.ids(b"bytes"),
                 lambda: t.encode_batch(["a", "a b"], padding=False, return_tensors="pt")):
        with pytest.raises((LookupError, AttributeError, TypeError, ValueError)): call()


def test_cache_is_bounded_and_changes_nothing():
    words = [f"word{k}" for k in range(3000)]
    text = " ".join(words) + " " + "x" * 100_000 + " \n" + "\u4e00" * 10_000
    t = {size: WordPieceTokenizer.train([A, B, "word0123456789"], 80, min_frequency=1, cache_size=size) for size in (0, 7, 1000)}
    ids = [k for k, _ in place_pieces(text, t[0])]
    for size, tokenizer in t.items():
        assert tokenizer.ids(text) == ids
        assert len(tokenizer.cache) <= size and max(map(len, tokenizer.cache), default=0) <= 64


def test_memory_is_bounded():
    tokenizer = WordPieceTokenizer([*SPECIALS, "a"], cache_size=2000)
    tracemalloc.start()
    for k in range(200): tokenizer.ids(" ".join(f"{k}x{j}é{j}" for j in range(200)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000


def test_pickles():
    tokenizer = WordPieceTokenizer.train([A, B], 70, min_frequency=1)
    tokenizer.ids(A)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(A, B) == tokenizer.encode(A, B) and again.ids("ball her") == tokenizer.ids("ball her")


def test_fit_lengths_keeps_the_room():
    for n, m, room in STRATEGIES:
        a, b = fit_lengths(n, m, room)
        assert a + b == min(n + m, room) and a <= n and b <= m
