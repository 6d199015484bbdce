// The words under an element, each with the contrast of its letters and their ground (WCAG 2.2, 1.4.3).
root => {
  const pen = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
  function paint(colour) {  // one layer more; the relative luminance of what is seen then
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  const paper = document.body.appendChild(document.createElement("p"));
  paper.style.backgroundColor = "Canvas";
  const bare = getComputedStyle(paper).backgroundColor;
  paper.remove();
  function grounds(element) {  // from the page's own to the one right behind the letters
    if (element instanceof SVGElement) {
      const {x, y, width, height} = element.getBoundingClientRect();
      const shape = document.elementsFromPoint(x + width / 2, y + height / 2).find(e => e instanceof SVGGeometryElement && getComputedStyle(e).fill != "none");
      return [bare, shape ? getComputedStyle(shape).fill : bare];
    }
    const colours = [];
    for (let e = element; e; e = e.parentElement) colours.unshift(getComputedStyle(e).backgroundColor);
    return [bare, ...colours];
  }
  const found = [], texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node; node = texts.nextNode();) {
    const element = node.parentElement, style = getComputedStyle(element);
    if (!node.data.trim() || !element.checkVisibility() || element.closest("style, script, title, desc")) continue;
    if (element instanceof SVGElement) element.scrollIntoView({block: "center", inline: "center"});
    const ground = grounds(element).map(paint).pop();
    const [low, high] = [ground, paint(element instanceof SVGElement ? style.fill : style.color)].sort((a, b) => a - b);
    found.push([node.data.trim(), (high + 0.05) / (low + 0.05)]);
  }
  return found;
}
