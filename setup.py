"""The package, its requirements and its command, read from settings.ini."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

settings = ConfigParser(delimiters=["="])
settings.read("settings.ini", encoding="utf8")
cfg = settings["DEFAULT"]

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=Path("README.md").read_text(encoding="utf8") if Path("README.md").exists() else "",
    long_description_content_type="text/markdown",
    keywords=cfg["keywords"],
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    license="Apache-2.0",
    packages=[*find_packages(include=["minibert", "minibert.*"]), "minibert.course_model", "minibert.measured"],
    package_data={"minibert": ["py.typed"], "minibert.data": ["*.txt"], "minibert.show": ["*.html"], "minibert.course_model": ["*"], "minibert.measured": ["*.json", "*.npz"]},
    python_requires=f">={cfg['min_python']}",
    install_requires=cfg["requirements"].split(),
    extras_require={
        "extra": cfg["extra_requirements"].split(),
        "onnx": cfg["onnx_requirements"].split(),
        "test": cfg["test_requirements"].split(),
        "dev": (cfg["test_requirements"] + " " + cfg["dev_requirements"]).split(),
        "browser": cfg["browser_requirements"].split(),
        "site": (cfg["test_requirements"] + " " + cfg["site_requirements"]).split(),
    },
    entry_points={"console_scripts": cfg["console_scripts"].split(), "nbdev": ["minibert=minibert._modidx:d"]},
    zip_safe=False,
)
