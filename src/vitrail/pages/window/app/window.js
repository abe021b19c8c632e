// Where the page of a server begins.
import { start } from "./main.js";
import { server } from "./server.js";
import { views } from "./views.js";

start(views, server);
