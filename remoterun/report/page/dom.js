// Elements. Text of a target becomes a text node or the value of a harmless attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child || child === 0));
  return node;
}

function button(name, label, click, attributes) {
  return element("button", { type: "button", class: name, click, ...attributes }, label);
}

// A group of choices of which one is pressed.
function choices(label, options, chosen, choose) {
  const buttons = options.map(([value, ...text]) =>
    button("choice", text, () => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === buttons[place(value)]));
      choose(value);
    }, { "aria-pressed": String(value === chosen) }),
  );
  const place = (value) => options.findIndex(([each]) => each === value);
  return element("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

// Move the focus among the elements of a group, of which one is reached by Tab.
function focusOn(group, node) {
  const before = group.querySelector('[tabindex="0"]');
  if (before && before !== node) before.setAttribute("tabindex", "-1");
  node.setAttribute("tabindex", "0");
  node.focus();
}

function section(id, title, ...children) {
  return element("section", { id, class: "section", "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title), children);
}
