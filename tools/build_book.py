"""Build the book into _build/html, from nothing, with warnings as errors: `build_book.py [html|gettext|linkcheck]`.

Calls the function behind `jupyter-book build`, which takes settings that the command line has no option for.
The repository's address comes from settings.ini, and nowhere else.
"""
import configparser
import shutil
import sys
from pathlib import Path

from jupyter_book.sphinx import build_sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


def project():
    """The facts in settings.ini."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def console(*commands):
    return "\n".join(["```console", *(f"$ {command}" for command in commands), "```"])


def substitutions(facts):
    """What `{{name}}` stands for in the pages: Markdown, since addresses cannot be put into links or code otherwise."""
    url, branch = facts["git_url"], facts["branch"]
    slug = url.removeprefix("https://github.com/")
    return {
        "version": facts["version"],
        "repository": f"[{slug}]({url})",
        "colab": f"[Colab](https://colab.research.google.com/github/{slug})",
        "binder": f"[Binder](https://mybinder.org/v2/gh/{slug}/{branch}?urlpath=lab/tree/nbs)",
        "clone": console(f"git clone {url}", f"cd {url.rsplit('/', 1)[1]}"),
        "install": console(f"pip install git+{url}"),
    }


def settings():
    """What takes the place of, or adds to, book/_config.yml."""
    facts = project()
    address = facts["doc_host"] + facts["doc_baseurl"] + "/"
    return {
        "external_toc_path": (ROOT / "_toc.yml").as_posix(),
        "latex_individualpages": False,
        "nitpicky": True,
        "project": facts["title"],
        "html_title": facts["title"],
        "author": facts["author"],
        "copyright": facts["copyright"],
        "release": facts["version"],
        "html_baseurl": address,
        "ogp_site_url": address,
        "ogp_site_name": facts["title"],
        "html_theme_options": {
            "repository_url": facts["git_url"],
            "repository_branch": facts["branch"],
            "path_to_docs": "",
            "launch_buttons": {"binderhub_url": "https://mybinder.org", "colab_url": "https://colab.research.google.com",
                               "notebook_interface": "jupyterlab", "thebe": False},
        },
        "myst_substitutions": substitutions(facts),
    }


def build(builder="html"):
    out = ROOT / "_build" / builder
    doctrees = ROOT / "_build/doctrees" / builder
    for folder in (out, doctrees):  # an unchanged page is not read again, and would hide its warnings
        shutil.rmtree(folder, ignore_errors=True)
    return build_sphinx(ROOT, out, noconfig=True, path_config=ROOT / "book/_config.yml", confoverrides=settings(),
                        doctreedir=doctrees, builder=builder, warningiserror=True, keep_going=True, quiet=True)


if __name__ == "__main__":
    result = build(*sys.argv[1:])
    sys.exit(result if isinstance(result, int) else 1)
