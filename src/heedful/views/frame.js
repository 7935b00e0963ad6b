// Pages of attention in a sandboxed frame.

const nonce = document.currentScript.nonce;

const allowed = (html) => html.replace(/<(style|script)>/g, `<$1 nonce="${nonce}">`);      // a page made here inherits the policy of this one, and so needs its nonce

function framed(html, former = "") {             // the address of a page for the frame
  if (former) URL.revokeObjectURL(former);
  return URL.createObjectURL(new Blob([allowed(html)], { type: "text/html" }));
}
