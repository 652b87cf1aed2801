"""What a reader needs: how far colours differ, and what the keyboard reaches."""

from __future__ import annotations

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

_PALE = """
const parts = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
const ground = e => {
  const layers = [];
  for (; e; e = e.parentElement) layers.push(parts(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
};
const light = c => c.slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const found = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('.q-icon,script,style,svg')) continue;
  const style = getComputedStyle(e);
  if (style.visibility === 'hidden' || Number(style.opacity) === 0) continue;
  const behind = ground(e), colour = over(parts(style.color), behind);
  const [low, high] = [light(colour), light(behind)].sort((a, b) => a - b);
  const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5))
    found.push(`${ratio.toFixed(1)}: ${e.textContent.trim().slice(0, 40)} (${e.className})`);
}
return found;
"""


def pale(page: WebDriver, scheme: str) -> list[str]:
    """Texts that stand out too little from what is behind them (WCAG 2, AA); scheme: `light` or `dark`."""
    page.execute_cdp_cmd(  # type: ignore[attr-defined]
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    found: list[str] = page.execute_script(_PALE)
    return found


def tab_to(page: WebDriver, wanted: str, most: int = 80) -> None:
    """Press the tabulator until something is focused that has this label or text."""
    for _ in range(most):
        try:
            page.switch_to.active_element.send_keys(Keys.TAB)
            focused = page.switch_to.active_element
            if wanted in (focused.get_attribute("aria-label"), focused.text.strip()):
                return
        except StaleElementReferenceException:
            continue  # a part of the page was drawn again meanwhile
    raise AssertionError(f"the keyboard does not reach {wanted!r}")


def is_marked(page: WebDriver) -> bool:
    """Whether one sees what is focused: by an outline, a shadow, or what the library draws over it."""
    told: bool = page.execute_script(
        "const e = document.activeElement, s = getComputedStyle(e);"
        "return (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0) || s.boxShadow !== 'none'"
        "|| !!e.closest('.q-field--focused') || !!e.querySelector('.q-focus-helper')"
    )
    return told


def skip_link(page: WebDriver) -> str:
    """What the first press of the tabulator comes to."""
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    return page.switch_to.active_element.text
