// Pages of attention in a sandboxed frame.

const nonce = document.currentScript.nonce;

function framed(html, former = "") {             // the address of a page for the frame: it inherits the policy of this page, and so needs its nonce
  if (former) URL.revokeObjectURL(former);
  return URL.createObjectURL(new Blob([html.replace(/<(style|script)>/g, `<$1 nonce="${nonce}">`)], { type: "text/html" }));
}
