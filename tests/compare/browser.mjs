// Opens pages in Chromium and says what it saw: node browser.mjs CHROMIUM MODULES OUT [SCHEMES=PAGE…], JSON on stdout.
// OUT: a folder for pictures and PDFs of them; "" for none. SCHEMES: light,dark: those that axe-core looks at.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const [executablePath, modules, out, ...pages] = process.argv.slice(2);
const require = createRequire(join(modules, "none.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const LAPTOP = { width: 1366, height: 768 };
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], timeout: 180000 });

async function opened(path, options) {
  const context = await browser.newContext({ viewport: LAPTOP, ...options });
  context.setDefaultTimeout(180000); // a busy machine is no fault of the page's
  const page = await context.newPage();
  const seen = { console: [], requests: [] };
  page.on("console", (message) => seen.console.push(message.text()));
  page.on("pageerror", (error) => seen.console.push(String(error)));
  page.on("request", (request) => seen.requests.push(request.url()));
  const started = performance.now();
  await page.goto(pathToFileURL(path).href, { waitUntil: "load" });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  return { context, page, seen: { ...seen, open_ms: performance.now() - started } };
}

async function violations(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  return found.violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

// Folded lists are opened first: what is in them is looked at, too.
const unfold = (page) => page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = true)));
const width = (page) => page.evaluate(() => document.documentElement.scrollWidth);

async function look(path, schemes) {
  const name = out && join(out, basename(path, ".html"));
  const found = { axe: {} };
  for (const colorScheme of ["light", "dark"]) {
    const { context, page, seen } = await opened(path, { colorScheme });
    if (colorScheme === "light") Object.assign(found, seen, { width: await width(page) });
    if (name) {
      await page.screenshot({ path: `${name}-${colorScheme}.png` });
      await page.screenshot({ path: `${name}-${colorScheme}-whole.png`, fullPage: true });
    }
    await unfold(page);
    if (schemes.includes(colorScheme)) found.axe[colorScheme] = await violations(page);
    await context.close();
  }
  const phone = await opened(path, { viewport: { width: 390, height: 844 } });
  found.phone_width = await width(phone.page);
  if (name) await phone.page.screenshot({ path: `${name}-phone.png`, fullPage: true });
  await phone.context.close();

  const keyboard = await opened(path, {});
  found.tabs = [];
  for (let i = 0; i < 3; i++) {
    await keyboard.page.keyboard.press("Tab");
    found.tabs.push(
      await keyboard.page.evaluate(() => {
        const at = document.activeElement;
        const box = at.getBoundingClientRect();
        return { text: at.textContent, outline: getComputedStyle(at).outlineStyle, seen: box.top >= 0 && box.left >= 0 };
      }),
    );
  }
  await keyboard.page.keyboard.press("Shift+Tab");
  await keyboard.page.keyboard.press("Shift+Tab");
  await keyboard.page.keyboard.press("Enter");
  found.skipped_to = await keyboard.page.evaluate(() => document.activeElement.id);
  if (name) await keyboard.page.pdf({ path: `${name}.pdf`, format: "A4", preferCSSPageSize: true });
  await keyboard.page.emulateMedia({ media: "print" });
  await keyboard.page.setViewportSize({ width: 688, height: 1000 }); // A4 less the margins, at 96 dots an inch
  found.print_width = await width(keyboard.page);
  await keyboard.context.close();
  return found;
}

const found = {};
for (const page of pages) {
  const [schemes, path] = page.split(/=(.*)/s);
  found[path] = await look(path, schemes.split(","));
}
await browser.close();
console.log(JSON.stringify(found, null, 1));
