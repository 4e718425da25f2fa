// A menu of versions in the header, where `scripts/publish.py` has put several next to each other.
(function () {
  const list = document.createElement("script")
  list.src = new URL("../versions.js", __md_scope).href
  list.onload = () => {
    const root = decodeURI(__md_scope.pathname)
    const page = decodeURI(location.pathname).slice(root.length) || "index.html"
    const menu = document.createElement("select")
    menu.className = "helion-versions"
    menu.ariaLabel = "Version of the documentation"
    for (const { version } of window.helionVersions) menu.add(new Option(version, version))
    menu.value = root.split("/").at(-2)
    menu.onchange = () => {
      const { version, pages } = window.helionVersions.find((each) => each.version === menu.value)
      location.href = new URL(`../${version}/${pages.includes(page) ? page : "index.html"}`, __md_scope).href
    }
    document.querySelector(".md-header__title").after(menu)
  }
  document.head.append(list)
})()
