"""Sphinx's settings for the site, which tools/make_site.py builds from the notebooks."""
import os
import re
from collections import defaultdict
from pathlib import Path

import latex2mathml.converter
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from stamp import settings_of  # of tools, where Sphinx is called from

settings = settings_of(Path(__file__).resolve().parent.parent)

project, author, copyright, release = (settings[key] for key in ("title", "author", "copyright", "version"))
html_title = project
html_baseurl = settings["doc_host"] + settings["doc_baseurl"] + "/"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
suppress_warnings = ["mystnb.unknown_mime_type"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the {type}", "Hide the {type}"
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
toc_object_entries_show_parents = "hide"
add_module_names = False
html_math_renderer = "mathml"

html_theme = "pydata_sphinx_theme"
templates_path = ["_templates"]
html_domain_indices = False
html_static_path = ["_static"]
html_extra_path = ["../_proc/extra"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = html_show_sourcelink = False
html_sidebars = {"index": []}
html_theme_options = dict(
    icon_links=[dict(name="GitHub", url=settings["git_url"], icon="fa-brands fa-github")],
    header_links_before_dropdown=6,
    navbar_align="left",
    secondary_sidebar_items=["page-toc"],
    footer_start=["copyright"], footer_end=[],
    show_toc_level=1,
    show_version_warning_banner=False,
    back_to_top_button=False,
)
if folder := os.environ.get("MINIBERT_VERSION"):  # beside the folders of others, as tools/list_versions.py lists them
    html_theme_options |= dict(switcher=dict(json_url="../versions.json", version_match=folder), check_switcher=False,
                               navbar_end=["version-switcher", "theme-switcher", "navbar-icon-links"])


def mathml(self, node: nodes.Element) -> None:
    "A formula as MathML, which browsers draw by themselves."
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    formula = latex2mathml.converter.convert(node.astext(), display=display)
    self.body.append(f'<div class="math" tabindex="0">{formula}</div>' if display == "block" else formula)
    raise nodes.SkipNode


class LinkNames(SphinxPostTransform):
    "Links from a public name between backticks to the API."
    default_priority = 400

    def run(self) -> None:
        if self.env.docname.startswith("api/"): return
        objects = self.env.domains.python_domain.objects
        code = "\n".join(block.astext() for block in self.document.findall(nodes.literal_block))
        for literal in list(self.document.findall(nodes.literal)):
            if nested(literal): continue
            name = literal.astext().removesuffix("()")
            found = [full for full in names_ending(self.env)[name] if sure(name, full, code)]
            nearest = min((full.count(".") for full in found), default=0)
            if len(found := [full for full in found if full.count(".") == nearest]) != 1: continue
            entry = objects[found[0]]
            uri = self.app.builder.get_relative_uri(self.env.docname, entry.docname) + f"#{entry.node_id}"
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri))


def nested(node: nodes.Node) -> bool:
    "Whether it stands in a link or a heading."
    return node is not None and (isinstance(node, (nodes.reference, nodes.title)) or nested(node.parent))


def names_ending(env) -> dict[str, list[str]]:
    "The full names for what may stand in prose: `attend`, `BertConfig.preset`, `minibert.parity`."
    if not hasattr(env, "public"):
        env.public = defaultdict(list)
        for full, entry in env.domains.python_domain.objects.items():
            module = entry.docname.replace("api/", "minibert.")
            if entry.objtype != "attribute": env.public[full.removeprefix(module + ".")].append(full)
    return env.public


def sure(name: str, full: str, code: str) -> bool:
    "Whether a name means this one: a plain word may be a word, so the page must import it or a chapter build it."
    if re.search(rf"^(def|class) {name}\b|^(from .* import|   ) .*\b{name}\b(?![=:(])", code, re.M): return True
    page = full.startswith("minibert.one_page.")  # whose names are those of the later chapters, shorter
    return not page and (re.fullmatch(r"[a-z]+|.{1,2}", name) is None or full.count(".") == 2)


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.add_post_transform(LinkNames)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
