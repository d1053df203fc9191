/* Read the data, and bring each part of the page to life. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function choosing(sections) {
  const choice = document.getElementById("choice");
  if (!choice) return;
  const choose = () => sections.forEach((s, n) => { s.hidden = n !== Number(choice.value); });
  choice.addEventListener("change", choose);
  choose();
}

const sections = [...document.querySelectorAll("section[data-view]")];
choosing(sections);
unpacked(document.getElementById("data").textContent).then((views) => {
  sections.forEach((section, number) => {
    if (!views[number]) return;
    const timeline = new Timeline(section, views[number]);
    if (views[number].where) new Chunks(section, views[number], timeline);
    if (views[number].traffic.length) new Traffic(section, views[number]);
  });
  document.body.dataset.ready = "yes";
});
