"""A picture is written where it was asked for, and nowhere else."""
from minibert.show.plots import show_curves, write_figure


def test_a_link_at_a_pictures_place_is_not_followed(tmp_path):
    (tmp_path / "mine.txt").write_text("a letter")
    (tmp_path / "curves.png").symlink_to(tmp_path / "mine.txt")
    write_figure(show_curves({"loss": [3, 2, 1]}), tmp_path / "curves.png")
    assert (tmp_path / "mine.txt").read_text() == "a letter" and not (tmp_path / "curves.png").is_symlink()
