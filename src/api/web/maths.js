// Simple TeX to MathML, which browsers draw themselves. What is not understood stays readable text.

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";

function node(name, ...children) {
  const made = document.createElementNS(NAMESPACE, name);
  made.append(...children);
  return made;
}

const table = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split("=")));

/** Letters by their commands. */
const LETTERS = table(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ
  nu=ν xi=ξ pi=π rho=ρ sigma=σ tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ
  Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ emptyset=∅ varnothing=∅ Re=ℜ Im=ℑ aleph=ℵ ldots=… dots=… cdots=⋯ vdots=⋮ degree=°`);
/** Signs between terms. */
const SIGNS = table(`times=× cdot=⋅ div=÷ pm=± mp=∓ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ approx=≈ equiv=≡ sim=∼ propto=∝ ll=≪ gg=≫ in=∈ notin=∉
  subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ cup=∪ cap=∩ setminus=∖ forall=∀ exists=∃ neg=¬ land=∧ lor=∨ wedge=∧ vee=∨ oplus=⊕ otimes=⊗ circ=∘
  to=→ rightarrow=→ leftarrow=← Rightarrow=⇒ Leftarrow=⇐ implies=⟹ iff=⟺ Leftrightarrow=⇔ leftrightarrow=↔ mapsto=↦ mid=∣ parallel=∥ perp=⊥
  langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ therefore=∴ star=⋆ ast=∗ prime=′ colon=: vert=| Vert=‖`);
/** Signs that carry limits. */
const LARGE = table("sum=∑ prod=∏ int=∫ iint=∬ oint=∮ bigcup=⋃ bigcap=⋂ lim=lim max=max min=min sup=sup inf=inf argmax=argmax argmin=argmin");
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh exp log ln lg det dim ker gcd mod Pr".split(" "));
const SPACES = new Map([[",", "0.17em"], [":", "0.22em"], [";", "0.28em"], [" ", "0.3em"], ["quad", "1em"], ["qquad", "2em"], ["!", "0"]]);
const ACCENTS = table("hat=^ bar=¯ overline=¯ vec=→ tilde=~ dot=˙ ddot=¨ widehat=^");
const BLACKBOARD = table("R=ℝ N=ℕ Z=ℤ Q=ℚ C=ℂ P=ℙ E=𝔼");
const VARIANTS = new Set(["mathbf", "mathrm", "mathit", "mathcal", "mathsf", "boldsymbol", "operatorname", "mathbb"]);
const TEXTS = new Set(["text", "textbf", "textit", "textrm", "mbox"]);
/** Left and right signs of matrices. */
const FENCES = { pmatrix: "()", bmatrix: "[]", vmatrix: "||", matrix: "", cases: "{", aligned: "", align: "", "align*": "", array: "", gathered: "" };
const MAX_DEPTH = 20;
/** Longer formulas are shown as they stand. */
const MAX_CHARACTERS = 2000;

/** The formula, in a line of its own (`display`) or within one; null where it is too long. */
export function maths(tex, display) {
  if (tex.length > MAX_CHARACTERS) return null;
  const parser = new Parser(tex);
  const made = node("math", parser.row(() => false, 0));
  if (display) made.setAttribute("display", "block");
  made.setAttribute("aria-label", tex.trim());
  return made;
}

class Parser {
  constructor(tex) {
    this.tokens = tex.match(/\\[a-zA-Z]+\*?|\\[\s\S]|[0-9]+(?:[.,][0-9]+)*|\s+|[\s\S]/gu) ?? [];
    this.at = 0;
  }

  peek() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    this.at += 1;
    return token;
  }

  /** Everything until `ends` says so, as one element. */
  row(ends, depth) {
    const parts = [];
    for (let token = this.peek(); token !== undefined && !ends(token); token = this.peek()) {
      const before = this.at;
      parts.push(this.scripted(depth));
      if (this.at === before) this.at += 1;
    }
    return parts.length === 1 ? parts[0] : node("mrow", ...parts);
  }

  /** A term with what stands above and below it. */
  scripted(depth) {
    const first = this.peek();
    let base = first === "^" || first === "_" ? node("mrow") : this.term(depth);
    let [low, high] = [null, null];
    for (let sign = this.peek(); (sign === "^" && !high) || (sign === "_" && !low) || sign === "'"; sign = this.peek()) {
      this.next();
      if (sign === "'") high = node("mrow", ...(high ? [high] : []), node("mo", "′"));
      else if (sign === "^") high = this.term(depth);
      else low = this.term(depth);
    }
    if (!low && !high) return base;
    const limits = LARGE.has(first?.slice(1)) && !first.includes("int");
    if (low && high) return node(limits ? "munderover" : "msubsup", base, low, high);
    if (low) return node(limits ? "munder" : "msub", base, low);
    return node(limits ? "mover" : "msup", base, high);
  }

  group(depth) {
    const made = this.row((token) => token === "}", depth + 1);
    this.next();
    return made;
  }

  /** The characters of a group as they stand. */
  words() {
    if (this.peek() !== "{") return this.next() ?? "";
    this.at += 1;
    let [text, open] = ["", 1];
    for (; this.at < this.tokens.length; this.at += 1) {
      const token = this.tokens[this.at];
      if (token === "{") open += 1;
      if (token === "}" && (open -= 1) === 0) break;
      text += token;
    }
    this.at += 1;
    return text;
  }

  term(depth) {
    const token = this.next();
    if (token === undefined || depth > MAX_DEPTH) return node("mrow");
    if (token === "{") return this.group(depth);
    if (/^[0-9]/.test(token)) return node("mn", token);
    if (token.startsWith("\\") && token.length > 1) return this.command(token.slice(1), depth);
    if (/^\p{L}$/u.test(token)) return node("mi", token);
    if (token === "}" || token === "&") return node("mrow");
    return node("mo", token === "-" ? "−" : token === "*" ? "∗" : token);
  }

  command(name, depth) {
    if (LETTERS.has(name)) return node("mi", LETTERS.get(name));
    if (SIGNS.has(name)) return node("mo", SIGNS.get(name));
    if (LARGE.has(name)) return node("mo", LARGE.get(name));
    if (FUNCTIONS.has(name)) return node("mi", name);
    if (SPACES.has(name)) {
      const space = node("mspace");
      space.setAttribute("width", SPACES.get(name));
      return space;
    }
    if (TEXTS.has(name)) return node("mtext", this.words());
    if (VARIANTS.has(name)) {
      const text = this.words();
      if (name === "mathbb") return node("mi", BLACKBOARD.get(text) ?? text);
      const made = new Parser(text).row(() => false, depth + 1);
      if (name === "mathbf" || name === "boldsymbol") made.setAttribute("class", "bold");
      return name === "operatorname" || name === "mathrm" ? node("mi", text) : made;
    }
    if (ACCENTS.has(name)) {
      const made = node("mover", this.term(depth + 1), node("mo", ACCENTS.get(name)));
      made.setAttribute("accent", "true");
      return made;
    }
    switch (name) {
      case "frac": case "dfrac": case "tfrac":
        return node("mfrac", this.term(depth + 1), this.term(depth + 1));
      case "binom": {
        const made = node("mfrac", this.term(depth + 1), this.term(depth + 1));
        made.setAttribute("linethickness", "0");
        return node("mrow", node("mo", "("), made, node("mo", ")"));
      }
      case "sqrt":
        if (this.peek() === "[") {
          this.next();
          const degree = this.row((token) => token === "]", depth + 1);
          this.next();
          return node("mroot", this.term(depth + 1), degree);
        }
        return node("msqrt", this.term(depth + 1));
      case "left": case "right": case "big": case "Big": case "bigl": case "bigr": case "Bigl": case "Bigr": {
        const sign = this.next() ?? "";
        return sign === "." ? node("mrow") : node("mo", SIGNS.get(sign.slice(1)) ?? sign.replace("\\", ""));
      }
      case "begin": return this.rows(this.words(), depth);
      case "end": this.words(); return node("mrow");
      case "\\": return node("mspace");
      case "boxed": case "displaystyle": case "limits": case "nolimits": return name === "boxed" ? this.term(depth + 1) : node("mrow");
    }
    return /^[a-zA-Z]/.test(name) ? node("mtext", `\\${name}`) : node("mo", name);
  }

  /** The rows of a matrix, of cases or of aligned formulas. */
  rows(kind, depth) {
    if (kind === "array" && this.peek() === "{") this.words();
    const rows = [[]];
    const ends = (token) => token === "&" || token === "\\\\" || token === "\\end";
    while (this.peek() !== undefined) {
      rows.at(-1).push(node("mtd", this.row(ends, depth + 1)));
      const sign = this.next();
      if (sign === "\\\\") rows.push([]);
      else if (sign !== "&") break;
    }
    this.words();
    const filled = rows.filter((cells) => cells.some((cell) => cell.textContent));
    const made = node("mtable", ...filled.map((cells) => node("mtr", ...cells)));
    const [left, right] = [...(FENCES[kind] ?? "")].concat("", "");
    if (!left) return made;
    return node("mrow", node("mo", left), made, ...(right ? [node("mo", right)] : []));
  }
}
