// The views of the page, in the order of their tabs. A view's module is loaded when it is first opened and exports
//   id                  its key here
//   mount(root, ctx)    builds its elements below `root`, once
//   update(state, ctx)  shows the state; called after mount and after every change while the view is open: of the
//                       store, the image, its inspection, the language or the theme
//   leave()             optional: called when another view is opened (stop timers and requests)
// `ctx` is described in main.js. The tab's name is the text `frame.view.ID`.

export const views = {
  walk: () => import("./views/walk.js"),
  attention: () => import("./views/attention.js"),
  lens: () => import("./views/lens.js"),
  what_if: () => import("./views/what_if.js"),
  compare: () => import("./views/compare.js"),
  data: () => import("./views/data.js"),
  model: () => import("./views/model.js"),
};
