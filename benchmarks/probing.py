"""The long runs of chapter 18: parts of speech in a treebank, and who is who in the stories; figures in one JSON.

    python benchmarks/probing.py --treebank ../shared/data/ud_english_ewt --tags minilm=FOLDER wikitext=FOLDER --stories demo=FOLDER

Runs that stand in the file already are kept (`--again` measures them anew). `--try minilm=FOLDER` tries the levers instead: one seed,
`--words` words to learn from, and judged on a tenth of the training file that is not learned from, so that what is chosen there
is chosen without the dev file. About ten minutes for all on two quiet cores, half of it for MiniLM's untrained twins."""
import argparse
import json
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

from minibert.core.files import write_whole
from minibert.measure.probes import extract, place_words
from minibert.probing import TaggedText, fit_probes, number_tags, predict_tags, standardise_
from minibert.measure.probe_runs import layer_names, read_treebank, probe_checkpoint
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import load_pretrained

LEVERS = {  # what: (both pieces, layers read as one vector, standardised, arguments of fit_probes)
    "as it is": (False, None, True, {}),
    "first and last piece": (True, None, True, {}),
    "all layers as one vector": (False, "all", True, {}),
    "all layers as one vector, both pieces": (True, "all", True, {}),
    "weight decay 0.1": (False, None, True, dict(decay=0.1)),
    "weight decay 1": (False, None, True, dict(decay=1.0)),
    "three times as long": (False, None, True, dict(epochs=18, least=4500)),
    "rate 3e-3 instead of 1e-2": (False, None, True, dict(rate=3e-3)),
    "not standardised": (False, None, False, {}),
    "the case of the word beside the vector": (False, "case", True, {}),
}


def first_words(text: TaggedText, words: int) -> TaggedText:
    "Sentences from all over the text, about so many words of them: it goes by genre."
    step = max(1, round(len(text) / words))
    return TaggedText(text.words[::step], text.tags[::step])


def split_tenth(text: TaggedText, block: int = 20) -> tuple[TaggedText, TaggedText]:
    "Every tenth block of sentences, last in the pair, and the others."
    kept = [[k for k in range(len(text.words)) if (k // block % 10 == 9) == last] for last in (False, True)]
    return tuple(TaggedText([text.words[k] for k in part], [text.tags[k] for k in part]) for part in kept)


def case_of(text: TaggedText) -> torch.Tensor:  # (N, 4)
    "Capital first, all capitals, a digit inside, first in its sentence: what an uncased model cannot see, or hardly."
    rows = [[w[:1].isupper(), w.isupper(), any(map(str.isdigit, w)), not k] for words in text.words for k, w in enumerate(words)]
    return torch.tensor(rows).float()


def try_levers(name: str, folder: str, texts, only: list[str] | None) -> list[dict]:
    tokenizer, bert = WordPieceTokenizer.from_pretrained(folder), load_pretrained(folder).bert.float()
    names, (labels, wanted) = number_tags(texts)
    longest, rows = bert.config.max_position_embeddings, []
    raw = [extract(bert, place_words(t.words, tokenizer, longest, True)).unflatten(1, (len(t), 2)) for t in texts]  # (L, N, 2, D)
    for what, (both, joined, scaled, options) in LEVERS.items():
        if only and what not in only: continue
        vectors = [v.flatten(2).clone() if both else v[:, :, 0].clone() for v in raw]
        if joined == "all": vectors = [v.permute(1, 0, 2).flatten(1)[None].contiguous() for v in vectors]
        if joined == "case": vectors = [torch.cat([v, case_of(t).expand(len(v), -1, -1)], -1) for v, t in zip(vectors, texts)]
        if scaled: standardise_(*vectors)
        told = predict_tags(fit_probes(vectors[0], labels[None], len(names), **options), vectors[1])[:, 0]
        shares = (told == wanted).double().mean(1).tolist()
        where = ["the joined vector"] if joined == "all" else layer_names(dict(trained=shares))
        best = max(range(len(where)), key=shares.__getitem__)
        rows.append(dict(model=name, what=what, words=len(texts[0]), accuracy=shares[best], where=where[best]))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treebank", default="../shared/data/ud_english_ewt", help="a folder of CoNLL-U files")
    parser.add_argument("--tags", nargs="*", default=[], help="name=folder of models that read the treebank")
    parser.add_argument("--stories", nargs="*", default=[], help="name=folder of models that read the stories")
    parser.add_argument("--try", nargs="*", default=[], dest="tried", help="name=folder of models to try the levers on")
    parser.add_argument("--only", nargs="*", help="levers to try")
    parser.add_argument("--words", type=int, default=50_000, help="for --try")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fresh", type=int, default=2, help="seeds for the treebank's untrained encoders, which take the longest")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", default="minibert/measured/probing.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # a plain BertModel has no heads, and none are wanted
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else dict(runs={}, tried=[])
    wanted = [("stories", pair, {}) for pair in arguments.stories]
    for kind, both, fresh in (("", True, arguments.fresh), (", first piece", False, 1)):
        options = dict(dataset=arguments.treebank, both=both, fresh=fresh)
        wanted += [("treebank", pair.replace("=", f"{kind}=", 1), options) for pair in arguments.tags]
    for text, pair, options in wanted:
        name, folder = pair.split("=", 1)
        if name in kept["runs"] and not arguments.again: continue
        start = time.process_time()
        result = probe_checkpoint(folder, seeds=arguments.seeds, **options)
        config = {k: v for k, v in asdict(load_pretrained(folder).config).items() if "dropout" not in k}
        kept["runs"][name] = result | dict(config=config, text=text, cpu_seconds=round(time.process_time() - start, 1))
        write_whole(path, json.dumps(kept, indent=1) + "\n")
    for name, folder in (pair.split("=", 1) for pair in arguments.tried):
        learn, judge = split_tenth(read_treebank(arguments.treebank)[0])
        rows = try_levers(name, folder, (first_words(learn, arguments.words), judge), arguments.only)
        new = {(row["model"], row["what"]) for row in rows}
        kept["tried"] = [row for row in kept["tried"] if (row["model"], row["what"]) not in new] + rows
        write_whole(path, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__": main()
