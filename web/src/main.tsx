// SPDX-License-Identifier: Apache-2.0

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { App } from "./app";
import { Store } from "./store";
import "./style.css";
import { applyTheme, onPreference } from "./theme";

applyTheme();
const store = new Store();
const root = document.getElementById("app") as HTMLElement;
onPreference(() => {
  applyTheme();
  store.set({});
});
store.start((state) => render(<App store={store} state={state} />, root));
