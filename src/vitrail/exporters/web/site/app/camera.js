// The camera: a stream of frames, each given to the model when it has answered the one before.

export class Camera {
  constructor() {
    this.video = document.createElement("video");
    this.video.muted = this.video.playsInline = true;
    this.facing = "environment";
    this.session = null; // one object from start to stop, also while a camera is being opened
    this.stream = null;
  }

  get running() {
    return this.session !== null;
  }

  get hasFrame() {
    return this.video.videoWidth > 0 && this.video.readyState >= HTMLMediaElement.HAVE_CURRENT_DATA;
  }

  // Resolves to whether the camera was opened: it is not if it was stopped meanwhile.
  start() {
    this.session = {};
    return this.open(this.facing);
  }

  // The other camera, in the same session. The first is closed before: many phones open only one.
  flip() {
    this.close();
    return this.open(this.facing === "environment" ? "user" : "environment");
  }

  stop() {
    this.session = null;
    this.close();
  }

  async open(facing) {
    const { session } = this;
    try {
      const video = { facingMode: { ideal: facing }, width: { ideal: 1280 } };
      const stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
      if (session !== this.session) {
        stopTracks(stream);
        return false;
      }
      this.stream = this.video.srcObject = stream;
      this.facing = facing;
      await this.video.play();
    } catch (error) {
      if (session === this.session) throw error;
    }
    return session === this.session;
  }

  close() {
    if (this.stream) stopTracks(this.stream);
    this.video.srcObject = this.stream = null;
  }

  async several() {
    const devices = await navigator.mediaDevices.enumerateDevices();
    return devices.filter(({ kind }) => kind === "videoinput").length > 1;
  }

  // Calls `draw` for every frame that is shown, until the session ends.
  follow(draw) {
    const { session } = this;
    const step = () => {
      if (this.session !== session) return;
      if (this.hasFrame) draw(this.video);
      requestAnimationFrame(step);
    };
    step();
  }
}

function stopTracks(stream) {
  for (const track of stream.getTracks()) track.stop();
}
