// Search for pages opened from disk: browsers start no worker there, so its script runs in a hidden frame instead.
(function () {
  if (location.protocol !== "file:") return

  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = (this.inner = this.frame.contentWindow)
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => this.run(each)), Promise.resolve())
      this.ready = this.run(url)
      this.ready.catch(() => this.dispatchEvent(new Event("error")))
    }

    run(url) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script")
        script.src = new URL(url, document.baseURI).href
        script.onload = () => resolve()
        script.onerror = () => reject(new Error(`${script.src} cannot be read`))
        this.inner.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(
        () => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })),
        () => undefined,
      )
    }

    terminate() {
      this.frame.remove()
    }
  }

  window.Worker = FrameWorker
})()
