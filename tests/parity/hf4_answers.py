"""What transformers 4 answers and scores, kept in hf4_answers.json: transformers 5 has neither its question-answering pipeline nor its SQuAD script.

    python -m venv /tmp/hf4 && /tmp/hf4/bin/pip install transformers==4.57.6 torch==2.13.0 numpy
    PYTHONPATH=. /tmp/hf4/bin/python tests/parity/hf4_answers.py
"""
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers as hf

from minibert.data.stories import stories

HERE = Path(__file__).parent
COURSE = HERE.parent.parent / "minibert/course_model"
PAIRS = [  # an answer, and the truths
    ("the cat", ["cat"]), ("cat", ["the cat", "a dog"]), ("a cat sat", ["cat"]), ("24-hour", ["24hour"]), ("U.S.", ["us"]), ("co-a-la", ["coala"]), ("(a)", ["x"]),
    ("(a)", [""]), ("the", []), ("", []), ("", ["cat"]), ("cat", []), ("cat", ["", "the", "cat"]), ("The", ["an", "dog"]), ("cat cat", ["cat"]),
    ("cat dog cat", ["cat cat bird", "bird"]), ("“the cat”", ["cat"]), ("cat–dog", ["catdog"]), ("an  apple\ta day", ["apple day"]), ("theatre", ["atre"]),
    ("Ünter the Straße", ["ünter straße"]), ("in the park", ["at the park", "park in"]), ("don't", ["dont", "do not"]), ("$5 million", ["5 million", "five million"])]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(40))]
LENGTH, THIRD, CASES, ASKED = 12, 4, 40, 30


def scored() -> list:
    "Exact match and F1 of every pair."
    from transformers.data.metrics import squad_metrics
    found = []
    for answer, truths in PAIRS:
        example = SimpleNamespace(qas_id=0, answers=[dict(text=text) for text in truths])
        exact, f1 = squad_metrics.get_raw_scores([example], {0: answer})
        found.append([answer, truths, float(exact[0]), float(f1[0])])
    return found


def case(k: int) -> tuple[str, str, np.random.RandomState]:
    "A question of three words, a text of 1 to 30, and what draws its logits."
    draw = np.random.RandomState(k)
    words = draw.permutation(40)
    return " ".join(f"w{k}" for k in words[:3]), " ".join(f"w{k}" for k in words[3:4 + draw.randint(30)]), draw


def drawn(draw: np.random.RandomState, S: int) -> np.ndarray:  # (S, 2)
    "The logits of a window, in which no answer is likely."
    logits = draw.randn(S, 2)
    logits[0] += 4 * draw.rand()
    return logits


def ruled(folder: Path) -> list:
    "Google's rule on drawn logits: the answer, and how far no answer is above the best span."
    from transformers.data.metrics import squad_metrics
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    tokenizer, found = hf.BertTokenizerFast(str(folder / "vocab.txt")), []
    for k in range(CASES):
        question, text, draw = case(k)
        encoded = tokenizer(question, text, max_length=LENGTH, truncation="only_second", stride=THIRD, return_overflowing_tokens=True, return_offsets_mapping=True)
        words, features, results = text.split(), [], []
        starts = [text[:at].count(" ") for at in range(len(text))]  # which word a character is of
        for n, (ids, places) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"])):
            at = {i: starts[place[0]] for i, place in enumerate(places) if encoded.sequence_ids(n)[i] == 1}
            features.append(SimpleNamespace(unique_id=n, example_index=0, tokens=tokenizer.convert_ids_to_tokens(ids), token_to_orig_map=at,
                                            token_is_max_context=dict.fromkeys(at, True), paragraph_len=len(at)))
            results.append(SimpleNamespace(unique_id=n, **dict(zip(("start_logits", "end_logits"), drawn(draw, len(ids)).T.tolist()))))
        odds = folder / "odds.json"
        answers = squad_metrics.compute_predictions_logits(
            [SimpleNamespace(qas_id="0", doc_tokens=words)], features, results, n_best_size=20, max_answer_length=30, do_lower_case=True, output_prediction_file=None,
            output_nbest_file=None, output_null_log_odds_file=str(odds), verbose_logging=False, version_2_with_negative=True, null_score_diff_threshold=0.0, tokenizer=tokenizer)
        found.append([answers["0"], json.loads(odds.read_text())["0"]])
    return found


def piped() -> list:
    "The pipeline's answer to one question about the beginnings of stories, each in a window, by a head that is drawn."
    model = hf.BertForQuestionAnswering.from_pretrained(COURSE).eval()
    with torch.no_grad(): model.qa_outputs.weight.copy_(torch.from_numpy(np.random.RandomState(0).randn(2, 128)))
    pipe = hf.pipeline("question-answering", model=model, tokenizer=hf.BertTokenizerFast(str(COURSE / "vocab.txt")), max_seq_len=48, doc_stride=16,
                       max_answer_len=30, handle_impossible_answer=True, align_to_words=False)
    return [pipe(question="Who?", context=" ".join(story.sentences[:2]))["answer"] for story in stories(ASKED)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = dict(transformers=hf.__version__, scores=scored(), rule=ruled(Path(folder)), pipeline=piped())
    (HERE / "hf4_answers.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
