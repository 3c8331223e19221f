"""Intents: what the user asks for. Views emit, `app.chats` acts; a view never edits a model."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Intents(QObject):
    """One signal per thing a user can ask for.

    Signals:
        new_chat: open an empty chat in a new tab.
        open_chat(session_id): show this chat, in its tab or a new one.
        close_tab(session_id): close the tab; the chat stays in the list, its answer goes on.
        move_tab(session_id, index): the tab was dragged to this place.
        reopen_tab: the tab closed last comes back.
        send(session_id, text): a user message.
        send_all(texts): one new chat per text, sent together.
        stop(session_id): stop the answer being written.
        regenerate(session_id): another version of the last reply.
        choose_version(session_id, turn_index, version): show this version of a reply.
        rename(session_id, title)
        delete(session_id): take the chat away; Undo is offered.
        undo_delete: the chat deleted last comes back.
        set_pinned(session_id, is_pinned): keep the chat's blocks in memory, or no longer.
        set_system_prompt(session_id, text)
        set_sampling(session_id, sampling): an `app.records.Sampling`.
        export(session_id, format, path): format is md, json, html or pdf.
        import_chat(path): a JSON export comes in as a new chat.
        open_model(path): a .gguf file or a folder.
        cancel_load: give up loading a model.
        get_starter: fetch the starter model.
        cancel_starter: stop fetching it.
        restart_engine: after the engine stopped with a reason.
        set_theme(choice): system, light or dark.
        quit: end the application.
    """

    new_chat = Signal()
    open_chat = Signal(str)
    close_tab = Signal(str)
    move_tab = Signal(str, int)
    reopen_tab = Signal()
    send = Signal(str, str)
    send_all = Signal(list)
    stop = Signal(str)
    regenerate = Signal(str)
    choose_version = Signal(str, int, int)
    rename = Signal(str, str)
    delete = Signal(str)
    undo_delete = Signal()
    set_pinned = Signal(str, bool)
    set_system_prompt = Signal(str, str)
    set_sampling = Signal(str, object)
    export = Signal(str, str, str)
    import_chat = Signal(str)
    open_model = Signal(str)
    cancel_load = Signal()
    get_starter = Signal()
    cancel_starter = Signal()
    restart_engine = Signal()
    set_theme = Signal(str)
    quit = Signal()
