// Pages of attention in a sandboxed frame.

const TALLEST = 20000;             // pixels of a frame; a taller page scrolls in it
const HEAD = 240;                  // pixels of the frame's end over which the head of its page does not go
const nonce = document.currentScript.nonce;

const allowed = (html) => html.replace(/<(style|script)>/g, `<$1 nonce="${nonce}">`);      // a page made here inherits the policy of this one, and so needs its nonce

function framed(html, former = "") {             // the address of a page for the frame
  if (former) URL.revokeObjectURL(former);
  return URL.createObjectURL(new Blob([allowed(html)], { type: "text/html" }));
}

function tellAbove() {             // the page in the frame, how much of it is above the window; its head stays in view
  const frame = find("iframe"), { top, height } = frame.getBoundingClientRect();
  frame.contentWindow.postMessage({ above: Math.max(0, Math.min(-top, height - HEAD)) }, "*");
}

window.addEventListener("message", ({ source, data: told }) => {
  const frame = find("iframe");
  if (source !== frame.contentWindow || !(told?.height > 0)) return;
  frame.style.height = `${Math.min(told.height + 2, TALLEST)}px`;  // with the frame's own border
  tellAbove();
});
for (const event of ["scroll", "resize"]) window.addEventListener(event, tellAbove, { passive: true });
