"""The built book in a real browser that can reach nothing but the book."""
import contextlib
import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from chapters import chapters
from reading import PACKAGE, ROOT, facts, toc_files

pytestmark = pytest.mark.browser
BOOK = ROOT / "_build/html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--no-first-run", "--no-default-browser-check", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
HOME = f"{toc_files()[0]}.html"
CHAPTER = "nbs/metrics/05_classification.html"
API = "book/api/metrics.html"
PHONE, DESK = 390, 1280
ICON = "/favicon.ico"  # which browsers ask for by themselves


# -- the browser, cut off from the network

class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):  # a page was left before it had everything
        pass


@contextlib.contextmanager
def serving(folder):
    """Serve a folder on this machine alone; gives its address."""
    with Server(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium(missing):
    """A browser; found by name, since playwright's own is not installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing("no Chromium here: install it (on Debian, apt-get install chromium) to see the book tested in a browser")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(missing):
    """The address of the built book."""
    if not (BOOK / "index.html").exists():
        missing("the book is not built: run `make book`")
    with serving(BOOK) as address:
        yield address


class Visit:
    """A page of the browser, and what went wrong on it."""

    def __init__(self, browser, address, width=DESK, theme="light"):
        self.address, self.problems = address, []
        self.context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=False, service_workers="block",
                                           color_scheme="light")
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        if theme:
            self.context.add_init_script(f"for (const key of ['mode', 'theme']) if (!sessionStorage.seen) localStorage.setItem(key, '{theme}'); sessionStorage.seen = 1")
        self.page = self.context.new_page()
        self.page.set_default_timeout(90_000)  # how soon is not asked here: other tests may have the machine
        self.page.on("request", self._requested)  # no host but this one has an address; who asks is noted all the same
        self.page.on("console", lambda m: m.type == "error" and not m.location["url"].endswith(ICON) and self.problems.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", lambda r: r.status >= 400 and not r.url.endswith(ICON) and self.problems.append(f"{r.status}: {r.url}"))

    def _local(self, url):
        return url.startswith((self.address, "data:", "blob:", "about:"))

    def _requested(self, request):
        if not self._local(request.url):
            self.problems.append(f"asks {urlsplit(request.url).netloc or request.url}")

    def _failed(self, request):
        if self._local(request.url) and request.failure != "net::ERR_ABORTED":  # left behind by going to the next page
            self.problems.append(f"failed ({request.failure}): {request.url}")

    def open(self, name):
        self.page.goto(f"{self.address}/{name}", wait_until="load")
        return self.page

    def overflow(self):
        """By how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.fixture
def visit(chromium, site):
    """`visit(page, width=…, theme=…)` opens a page of the book; afterwards nothing may have gone wrong."""
    visits = []

    def start(name, **options):
        visits.append(Visit(chromium, site, **options))
        visits[-1].open(name)
        return visits[-1].page
    yield start
    problems = [problem for one in visits for problem in one.problems]
    for one in visits:
        one.context.close()
    assert problems == []


def wait_for_maths(page):
    page.wait_for_function("!document.querySelector('.math') || (window.MathJax && MathJax.startup && MathJax.startup.promise)")
    page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => true) : true")


# -- what is asked of a page; each a function of the page

def maths_problems(page):
    """TeX that is still to be seen, and formulas without size or without the fonts of MathJax."""
    return page.evaluate("""() => {
        const bad = [], sources = document.querySelectorAll('.math'), shown = document.querySelectorAll('mjx-container');
        if (!sources.length) bad.push('no formula');
        if (shown.length < sources.length) bad.push(`${sources.length} formulas, ${shown.length} typeset`);
        for (const formula of shown) if (formula.getBoundingClientRect().width === 0 && formula.offsetParent) bad.push('a formula without width');
        if (document.querySelector('mjx-merror, [data-mjx-error]')) bad.push('a formula with an error');
        if (shown.length && ![...document.fonts].some(f => f.family.startsWith('MJX') && f.status === 'loaded')) bad.push('no font of MathJax');
        return bad;
    }""")


def leaks(page):
    """nbdev's directives and hidden cells that show on the page."""
    text = page.locator("article").first.inner_text()
    return [sign for sign in ("#|", "default_exp", "find_spec(\"transformer_course\")", "# NBVAL", ":::") if sign in text]


def fonts_of(page, selector):
    """{font: glyphs} that the browser draws an element's text with; fonts that came with the page are marked."""
    session = page.context.new_cdp_session(page)
    session.send("DOM.enable")
    session.send("CSS.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    node = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
    fonts = session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
    session.detach()
    return {(font["familyName"], font["isCustomFont"]): font["glyphCount"] for font in fonts}


def contrasts(page, selector="figure img"):
    """[(alt text, ratio)] of the page's figures as they stand on it: the contrast (WCAG 2) between a picture's commonest
    colour and the one that differs most from it and fills at least a thousandth of the picture."""
    return page.evaluate("""selector => {
        const luminance = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                                   return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ground = element => { for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour; }
            return 'white'; };
        return [...document.querySelectorAll(selector)].filter(image => image.getBoundingClientRect().width).map(image => {
            const canvas = document.createElement('canvas'), draw = canvas.getContext('2d');
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            draw.fillStyle = ground(image);
            draw.fillRect(0, 0, canvas.width, canvas.height);
            draw.filter = getComputedStyle(image).filter;
            draw.drawImage(image, 0, 0);
            const data = draw.getImageData(0, 0, canvas.width, canvas.height).data, counts = new Map();
            for (let i = 0; i < data.length; i += 4) {
                const key = (data[i] >> 4) << 8 | (data[i + 1] >> 4) << 4 | data[i + 2] >> 4;
                counts.set(key, (counts.get(key) || 0) + 1);
            }
            const light = key => luminance([key >> 8, key >> 4 & 15, key & 15].map(v => v * 17));
            const commonest = light([...counts].reduce((a, b) => b[1] > a[1] ? b : a)[0]);
            const ratios = [...counts].filter(([, n]) => n >= data.length / 4000)
                .map(([key]) => (Math.max(light(key), commonest) + 0.05) / (Math.min(light(key), commonest) + 0.05));
            return [image.alt, Math.max(...ratios)];
        });
    }""", selector)


def violations(page):
    """Serious and critical findings of axe-core, each with the first element that it is about.

    Colours are looked at in the first pieces of code and signatures only: they repeat, and take most of the time.
    """
    from axe_playwright_python.sync_playwright import Axe
    page.evaluate("""for (const kind of ['pre', 'dt.sig', 'mjx-container'])
        [...document.querySelectorAll(kind)].slice(6).forEach(element => element.dataset.again = '')""")
    options = {"preload": False, "resultTypes": ["violations"]}
    found = Axe().run(page, options=options | {"rules": {"color-contrast": {"enabled": False}}}).response["violations"]
    found += Axe().run(page, context={"exclude": [["[data-again]"]]},
                       options=options | {"runOnly": {"type": "rule", "values": ["color-contrast"]}}).response["violations"]
    return [f"{v['id']} ({v['impact']}, {len(v['nodes'])}): {v['nodes'][0]['html'][:120]}" for v in found if v["impact"] in ("serious", "critical")]


def wrong_addresses(page, slug, branch, git_url, docname):
    """Buttons of a chapter that are missing or lead elsewhere than to its notebook."""
    wanted = {
        "Colab": f"https://colab.research.google.com/github/{slug}/blob/{branch}/{docname}.ipynb",
        "Binder": f"https://mybinder.org/v2/gh/{slug}/{branch}?urlpath=lab/tree/{docname}.ipynb",
        "the edit page": f"{git_url}/edit/{branch}/{docname}.ipynb",
    }
    links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
    downloads = page.eval_on_selector_all("a[download]", "links => links.map(link => link.href)")
    bad = [f"no link to {where}: {address}" for where, address in wanted.items() if address not in links]
    return bad + ([] if any(link.endswith(f"_sources/{docname}.ipynb") for link in downloads) else ["no download of the notebook"])


# -- the tests

PAGES = sorted(path.relative_to(BOOK).as_posix() for path in BOOK.rglob("*.html") if "_static" not in path.parts) or ["index.html"]


def test_no_page_asks_anybody_or_overflows(chromium, site):
    """Every page, in one go: nothing fails, nothing is fetched from elsewhere, and nothing sticks out, on a desk or on a phone."""
    bad = {}
    with Visit(chromium, site) as one:
        for name in PAGES:
            one.open(name)
            wait_for_maths(one.page)
            for width in (DESK, PHONE):
                one.page.set_viewport_size({"width": width, "height": 900})
                if (pixels := one.overflow()) > 0:
                    one.problems.append(f"{pixels} pixels wider than {width}")
            if one.problems:
                bad[name] = one.problems[:]
                one.problems.clear()
            one.page.set_viewport_size({"width": DESK, "height": 900})
    assert bad == {}


def test_the_address_of_the_book_leads_home(visit):
    page = visit("index.html")
    page.wait_for_url(f"**/{HOME}")


def test_home_page_lets_a_reader_start(visit):
    page = visit(HOME)
    assert facts()["title"] in page.title()
    first_screen = "".join(page.evaluate("""() => [...document.querySelectorAll('article *')].filter(e => !e.children.length
        && e.getBoundingClientRect().top < innerHeight).map(e => e.textContent + ' ')"""))
    assert len(first_screen.split()) > 40
    start = page.locator("article a[href*='00_runtime'], article a[href*='how_to'], article a[href*='05_classification']").first
    assert start.bounding_box()["y"] < 900
    start.click()
    assert page.locator("article h1").count() == 1


def test_next_and_previous_lead_through_the_chapters(visit):
    page, ordered = visit(f"{chapters()[0].docname}.html"), chapters()
    for left, right in zip(ordered, ordered[1:]):
        page.locator("a.right-next").click()
        page.wait_for_url(f"**/{right.docname}.html") if left.part == right.part else page.wait_for_load_state()
        assert page.locator("a.left-prev").count() == 1


def test_search_finds_a_term(visit):
    page = visit(HOME)
    page.locator("button.search-button__button:visible").first.click()
    page.locator("input[type=search]:visible").fill("confusion matrix")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    found = page.locator("#search-results a[href*='05_classification']").first
    found.wait_for()
    assert "finished searching" in page.locator("#search-results").inner_text().lower() or page.locator("#search-results li").count() > 0
    found.click()
    page.wait_for_url("**/05_classification.html*")


def test_theme_switches_and_stays(visit):
    page = visit(CHAPTER, theme=None)
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for _ in range(3):
        seen[page.evaluate("document.documentElement.dataset.mode")] = page.evaluate(colour)
        page.locator("button.theme-switch-button:visible").first.click()
    assert set(seen) == {"auto", "light", "dark"} and seen["light"] != seen["dark"]
    while page.evaluate("document.documentElement.dataset.mode") != "dark":
        page.locator("button.theme-switch-button:visible").first.click()
    page.goto(page.url.replace(CHAPTER, f"{chapters()[-1].docname}.html"))
    assert page.evaluate("document.documentElement.dataset.theme") == "dark" and page.evaluate(colour) == seen["dark"]


def test_phone_shows_the_menu_when_asked(visit):
    page = visit(CHAPTER, width=PHONE)
    link = page.locator(".bd-sidebar-primary a[href*='glossary']").first
    assert not link.is_visible() or link.bounding_box()["x"] < 0
    page.locator("button.primary-toggle:visible").first.click()
    page.wait_for_timeout(500)
    assert link.is_visible() and link.bounding_box()["x"] >= 0


def test_solutions_unfold(visit):
    page = visit(CHAPTER)
    solutions = page.locator("div.solution.dropdown")
    assert solutions.count() >= 3
    for number in range(solutions.count()):
        solution = solutions.nth(number)
        inside = solution.locator(":scope > section, :scope > div").first
        assert not inside.is_visible()
        solution.locator("button.toggle-button, .admonition-title").first.click()
        inside.wait_for(state="visible")
        assert solution.locator("div.cell_input:visible").count() >= 1, "the code is folded once more inside"


def test_figure_code_unfolds(visit):
    page = visit(CHAPTER)
    folded = page.locator("details.hide.above-input").first
    assert not folded.locator("pre").first.is_visible()
    folded.locator("summary").click()
    folded.locator("pre").first.wait_for(state="visible")


def test_maths_is_typeset(visit):
    page = visit(CHAPTER)
    wait_for_maths(page)
    assert maths_problems(page) == []


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.stem)
def test_chapter_page_is_whole(visit, chapter):
    page = visit(f"{chapter.docname}.html")
    slug = f"{facts()['user']}/{facts()['repo']}"
    assert leaks(page) == []
    assert wrong_addresses(page, slug, facts()["branch"], facts()["git_url"], chapter.docname) == []
    assert page.locator("a.headerlink").count() >= 5 and page.locator("article button.copybtn").count() >= 5
    assert page.eval_on_selector_all("article img", "images => images.filter(i => !i.alt || !i.complete || !i.naturalWidth).length") == 0
    has_reference = (PACKAGE / chapter.part / f"{chapter.name}.py").exists()  # a chapter may export nothing for users
    assert (page.locator("p.api-links a").count() >= 1) == has_reference
    source = page.request.get(page.locator("a[download]").first.evaluate("link => link.href"))
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert [alt for alt, ratio in contrasts(page) if ratio < 4.5] == [], f"pale figures in the {theme} theme"
    assert json.loads(source.text()) == json.loads(chapter.path.read_text(encoding="utf-8")), "the download is the notebook as it is"


def test_copy_button_copies_the_code(visit):
    page = visit(CHAPTER)
    cell = page.locator("div.cell_input:visible").first
    cell.hover()
    cell.locator("button.copybtn").click()
    page.wait_for_timeout(200)
    assert page.evaluate("navigator.clipboard.readText()").strip() == cell.locator("pre").inner_text().strip()


def test_claim_leads_to_its_cell_and_the_record_leads_to_both(visit):
    page = visit(CHAPTER)
    for link in page.locator("p.claim-link a").all():
        target = link.get_attribute("href")
        assert target.startswith("#settles-")
        assert "# settles" in page.locator(f"div.cell{target} .cell_input pre").inner_text()
    page.locator("p.claim-link a").last.click()
    top = page.evaluate("document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= top < 900
    page = visit("book/claims.html")
    link = page.locator("a[href*='05_classification.html#settles-']").first
    link.click()
    page.wait_for_url("**/05_classification.html#settles-*")
    assert page.evaluate("document.querySelector(':target').classList.contains('cell')")


def test_reference_and_chapter_lead_to_each_other(visit):
    page = visit(CHAPTER)
    page.locator("p.api-links a", has_text="accuracy").first.click()
    page.wait_for_url("**/api/metrics.html#transformer_course.metrics.classification.accuracy")
    entry = page.locator("dl.function", has=page.locator("dt[id='transformer_course.metrics.classification.accuracy']"))
    assert "y_true" in entry.locator("dt").first.inner_text()
    entry.get_by_role("link", name="chapter").click()
    page.wait_for_url("**/05_classification.html#def-*")
    assert "def accuracy" in page.locator(":target pre").inner_text()


def test_hangul_is_drawn_with_the_font_of_the_book(visit):
    page = visit("book/glossary.html")
    page.evaluate("""() => {
        const walk = document.createTreeWalker(document.querySelector('article'), NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) if (/[\\uac00-\\ud7a3]/.test(walk.currentNode.data)) { walk.currentNode.parentElement.id = 'hangul'; return; }
    }""")
    page.wait_for_function("[...document.fonts].some(f => f.family.includes('Hangul') && f.status === 'loaded')")
    text = page.locator("#hangul").inner_text()
    drawn = sum(n for (name, custom), n in fonts_of(page, "#hangul").items() if custom and "Hangul" in name)
    assert drawn >= sum("\uac00" <= letter <= "\ud7a3" for letter in text) > 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", [HOME, CHAPTER, API, "book/claims.html"])
def test_nobody_is_shut_out(visit, name, theme):
    page = visit(name, theme=theme)
    wait_for_maths(page)
    page.wait_for_timeout(400)  # colours fade in
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert violations(page) == []


def test_book_opens_from_the_disk(chromium, site):
    """Without a server: maths, theme and search work from file:// too."""
    with Visit(chromium, BOOK.as_uri()) as one:
        page = one.open(CHAPTER)
        wait_for_maths(page)
        assert maths_problems(page) == []
        page = one.open("search.html?q=precision")
        page.locator("#search-results a[href*='05_classification']").first.wait_for()
        page.locator("button.theme-switch-button:visible").first.click()
        assert one.problems == []


# -- the checks see what they are for

BROKEN = {
    "sound.html": "<!doctype html><html lang=en><title>x</title><body><main><h1>Fine</h1></main>",
    "asking.html": "<script src='https://cdn.example.org/x.js'></script>",
    "font.html": "<link rel=stylesheet href='//fonts.example.org/css'>",
    "missing.html": "<img src=gone.png alt=gone>",
    "console.html": "<script>console.error('oh')</script>",
    "script.html": "<script>nothing.here()</script>",
    "wide.html": "<div style='width:3000px'>x</div>",
    "tex.html": "<article><span class='math'>\\(x\\)</span> #| export</article>",
    "pictures.html": "<body style='background:#121212'>" + "".join(
        f"<img alt='{alt}' style='background:{ground}' src=\"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='90' height='50'>"
        f"{paper}<rect width='20' height='20' fill='{ink}'/></svg>\">" for alt, ground, paper, ink in [
            ("black on white", "none", "<rect width='90' height='50' fill='white'/>", "black"),
            ("grey on white", "none", "<rect width='90' height='50' fill='white'/>", "rgb(221,221,221)"),
            ("black on nothing, light card", "white", "", "black"), ("black on nothing, in the dark", "none", "", "black")]),
    "shut.html": "<!doctype html><html lang=en><title>x</title><main><h1>x</h1><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><p style='color:#ccc;background:#fff'>pale</p></main>",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    for name, text in BROKEN.items():
        (folder / name).write_text(text + "<link rel=icon href=data:,>", encoding="utf-8")
    with serving(folder) as address:
        yield address


@pytest.mark.parametrize("name, says", [
    ("sound.html", None), ("asking.html", "asks cdn.example.org"), ("font.html", "asks fonts.example.org"), ("missing.html", "404"),
    ("console.html", "console: oh"), ("script.html", "script: "),
])
def test_what_goes_wrong_on_a_page_is_seen(chromium, broken, name, says):
    with Visit(chromium, broken) as one:
        one.open(name)
        assert any(says in problem for problem in one.problems) if says else one.problems == []


def test_broken_pages_are_seen(chromium, broken):
    with Visit(chromium, broken, width=PHONE) as one:
        one.open("sound.html")
        assert one.overflow() == 0 and violations(one.page) == []
        one.open("wide.html")
        assert one.overflow() > 2000
        page = one.open("tex.html")
        assert maths_problems(page) == ["1 formulas, 0 typeset"] and leaks(page) == ["#|"]
        assert len(wrong_addresses(page, "a/b", "main", "https://github.com/a/b", "nbs/x")) == 4
        assert fonts_of(page, "article") and not any(custom for _, custom in fonts_of(page, "article"))
        found = " ".join(violations(one.open("shut.html")))
        assert "image-alt" in found and "color-contrast" in found


def test_pale_pictures_are_seen(chromium, broken):
    with Visit(chromium, broken) as one:
        found = dict(contrasts(one.open("pictures.html"), "img"))
    assert found["black on white"] > 15 and found["black on nothing, light card"] > 15
    assert found["grey on white"] < 2 and found["black on nothing, in the dark"] < 2
